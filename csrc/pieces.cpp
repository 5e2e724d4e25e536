#include "pieces.h"

#include <algorithm>
#include <queue>
#include <stdexcept>
#include <utility>

namespace tailrace {
namespace {

constexpr std::string_view kSpace = "\xE2\x96\x81";  // U+2581

uint64_t hash_of(std::string_view text) {
  uint64_t h = 0xCBF29CE484222325u;
  for (char c : text) h = (h ^ static_cast<uint8_t>(c)) * 0x100000001B3u;
  return h ^ (h >> 29);
}

size_t character_length(char first) {
  const auto c = static_cast<uint8_t>(first);
  return c < 0xC0 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
}

// A part of the text, in a list of its neighbours. A length of 0: joined into the one before.
struct Symbol {
  size_t start, length;
  int64_t before, after;
};

// Two neighbours that make a piece; out of date when their lengths no longer add up to `length`.
struct Pair {
  float score;
  int64_t left, right;
  size_t length;

  bool operator<(const Pair& other) const {  // the largest is joined first
    return score != other.score ? score < other.score : left > other.left;
  }
};

std::string escaped(std::string_view raw, bool prefix) {
  std::string text;
  text.reserve(raw.size() + raw.size() / 2 + kSpace.size());
  if (prefix) text += kSpace;
  for (char c : raw) c == ' ' ? text += kSpace : text += c;
  return text;
}

std::vector<Symbol> characters(std::string_view text) {
  std::vector<Symbol> symbols;
  for (size_t at = 0; at < text.size();) {
    const size_t length = std::min(character_length(text[at]), text.size() - at);
    const auto index = static_cast<int64_t>(symbols.size());
    symbols.push_back({at, length, index - 1, index + 1});
    at += length;
  }
  if (!symbols.empty()) symbols.back().after = -1;
  return symbols;
}

}  // namespace

Pieces::Pieces(Vocabulary vocabulary) : v_(std::move(vocabulary)) {
  const size_t n = v_.ends.size();
  if (v_.scores.size() != n || v_.roles.size() != n) throw std::invalid_argument("scores and roles: one for each token");
  if (!v_.bytes.empty() && v_.bytes.size() != 256) throw std::invalid_argument("bytes: none or 256");
  int64_t before = 0;
  for (int64_t end : v_.ends) {
    if (end < before || end > static_cast<int64_t>(v_.texts.size())) throw std::invalid_argument("ends must ascend");
    before = end;
  }
  for (int32_t token : v_.bytes)
    if (token < 0 || static_cast<size_t>(token) >= n) throw std::invalid_argument("bytes: not a token");
  if (v_.bytes.empty() && (v_.unknown < 0 || static_cast<size_t>(v_.unknown) >= n))
    throw std::invalid_argument("unknown: not a token");
  size_t size = 16;
  while (size < 2 * n) size *= 2;
  table_.assign(size, -1);
  node_token_.assign(1, -1);
  for (size_t token = 0; token < n; token++) {
    if (v_.roles[token] & (kMerged | kSymbol)) insert(static_cast<int32_t>(token));
    if (v_.roles[token] & (kAlwaysCut | kCutIfParsed)) add_cut(static_cast<int32_t>(token));
  }
}

std::string_view Pieces::text_of(int32_t token) const {
  const int64_t start = token == 0 ? 0 : v_.ends[token - 1];
  return std::string_view(v_.texts).substr(start, v_.ends[token] - start);
}

int32_t Pieces::find(std::string_view text) const {
  if (text.size() > longest_) return -1;
  const size_t mask = table_.size() - 1;
  for (size_t slot = hash_of(text) & mask; table_[slot] >= 0; slot = (slot + 1) & mask)
    if (text_of(table_[slot]) == text) return table_[slot];
  return -1;
}

// Of tokens with one text the last is meant, and one that can be joined goes before one that cannot.
void Pieces::insert(int32_t token) {
  const std::string_view text = text_of(token);
  if (text.empty()) return;
  const size_t mask = table_.size() - 1;
  size_t slot = hash_of(text) & mask;
  while (table_[slot] >= 0 && text_of(table_[slot]) != text) slot = (slot + 1) & mask;
  const bool kept = table_[slot] >= 0 && (v_.roles[table_[slot]] & kMerged) && !(v_.roles[token] & kMerged);
  if (!kept) table_[slot] = token;
  longest_ = std::max(longest_, text.size());
}

void Pieces::add_cut(int32_t token) {
  uint32_t node = 0;
  if (!text_of(token).empty()) begins_cut_[static_cast<uint8_t>(text_of(token)[0])] = true;
  for (char c : text_of(token)) {
    const auto [at, is_new] = steps_.try_emplace(uint64_t{node} << 8 | static_cast<uint8_t>(c), node_token_.size());
    if (is_new) node_token_.push_back(-1);
    node = at->second;
  }
  if (node != 0) node_token_[node] = token;  // an empty text would be found everywhere
}

Pieces::Cut Pieces::longest_cut(std::string_view rest, bool parse) const {
  const uint8_t wanted = parse ? kAlwaysCut | kCutIfParsed : kAlwaysCut;
  Cut found;
  uint32_t node = 0;
  for (size_t i = 0; i < rest.size(); i++) {
    const auto step = steps_.find(uint64_t{node} << 8 | static_cast<uint8_t>(rest[i]));
    if (step == steps_.end()) break;
    node = step->second;
    const int32_t token = node_token_[node];
    if (token >= 0 && (v_.roles[token] & wanted)) found = {token, i + 1};
  }
  return found;
}

std::vector<int32_t> Pieces::encode(std::string_view text, bool parse) const {
  std::vector<int32_t> out;
  size_t start = 0;
  for (size_t at = 0; at < text.size();) {
    if (!begins_cut_[static_cast<uint8_t>(text[at])]) {
      at += 1;
      continue;
    }
    const Cut cut = longest_cut(text.substr(at), parse);
    if (cut.token < 0) {
      at += 1;
      continue;
    }
    merge(text.substr(start, at - start), out);
    out.push_back(cut.token);
    start = at += cut.length;
  }
  merge(text.substr(start), out);
  return out;
}

void Pieces::merge(std::string_view raw, std::vector<int32_t>& out) const {
  if (raw.empty()) return;
  const size_t first = out.size();
  const std::string text = escaped(raw, v_.space_prefix);
  std::vector<Symbol> symbols = characters(text);
  std::priority_queue<Pair> waiting;
  const auto consider = [&](int64_t left, int64_t right) {
    if (left < 0 || right < 0) return;
    const size_t length = symbols[left].length + symbols[right].length;
    const int32_t token = find(std::string_view(text).substr(symbols[left].start, length));
    if (token >= 0 && (v_.roles[token] & kMerged)) waiting.push({v_.scores[token], left, right, length});
  };
  for (size_t i = 1; i < symbols.size(); i++) consider(static_cast<int64_t>(i) - 1, static_cast<int64_t>(i));
  while (!waiting.empty()) {
    const Pair pair = waiting.top();
    waiting.pop();
    Symbol &left = symbols[pair.left], &right = symbols[pair.right];
    if (left.length == 0 || right.length == 0 || left.length + right.length != pair.length) continue;
    left.length = pair.length;
    left.after = right.after;
    right.length = 0;
    if (left.after >= 0) symbols[left.after].before = pair.left;
    consider(left.before, pair.left);
    consider(pair.left, left.after);
  }
  for (int64_t at = 0; at >= 0; at = symbols[at].after)
    append(std::string_view(text).substr(symbols[at].start, symbols[at].length), first, out);
}

// `first`: where the ids of this part of the text begin.
void Pieces::append(std::string_view symbol, size_t first, std::vector<int32_t>& out) const {
  const int32_t token = find(symbol);
  if (token >= 0) {
    out.push_back(token);
  } else if (v_.bytes.empty()) {
    if (out.size() == first || out.back() != v_.unknown) out.push_back(v_.unknown);
  } else {
    for (char c : symbol) out.push_back(v_.bytes[static_cast<uint8_t>(c)]);
  }
}

}  // namespace tailrace
