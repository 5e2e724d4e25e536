// Score-merged BPE with byte fallback, as SentencePiece does it (Kudo and Richardson 2018): text in, token ids out.
//
//   text -> tokens that are always cut out, and what is between them
//        -> spaces written as U+2581, one put in front where the model wants it
//        -> one symbol a character; of all neighbours whose texts make a piece, those of the piece with the highest score
//           are joined first, of equal ones the leftmost, until none can be joined
//        -> ids; a symbol that is no piece becomes its bytes, or the unknown token (a run of them: one)
//
// Neighbours wait in a heap, so a text of n characters takes n log n steps whatever it says. Immutable once made.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tailrace {

// What a token may be: bits.
enum PieceRole : uint8_t {
  kMerged = 1,       // made from text by joining
  kSymbol = 2,       // one character of it may stand for itself
  kAlwaysCut = 4,    // its text is this token wherever it stands
  kCutIfParsed = 8,  // the same when control tokens are parsed
};

class Pieces {
 public:
  struct Vocabulary {
    std::string texts;          // of all tokens, one after another, UTF-8
    std::vector<int64_t> ends;  // where each ends, ascending
    std::vector<float> scores;
    std::vector<uint8_t> roles;
    std::vector<int32_t> bytes;  // token of each byte value, or empty: then `unknown` stands for what is no piece
    int32_t unknown = -1;
    bool space_prefix = false;
  };

  // Throws std::invalid_argument when the lists do not fit together.
  explicit Pieces(Vocabulary vocabulary);

  // Token ids of UTF-8 text. `parse`: the text of a control token is that token.
  std::vector<int32_t> encode(std::string_view text, bool parse) const;

 private:
  struct Cut {
    int32_t token = -1;
    size_t length = 0;
  };

  std::string_view text_of(int32_t token) const;
  int32_t find(std::string_view text) const;  // the token of this text that joining may give, or -1
  void insert(int32_t token);
  void add_cut(int32_t token);
  Cut longest_cut(std::string_view rest, bool parse) const;
  void merge(std::string_view raw, std::vector<int32_t>& out) const;
  void append(std::string_view symbol, size_t first, std::vector<int32_t>& out) const;

  Vocabulary v_;
  std::vector<int32_t> table_;  // open addressing by hash of the text
  size_t longest_ = 0;          // bytes of the longest piece
  std::unordered_map<uint64_t, uint32_t> steps_;  // (node << 8 | byte) -> node of the tree of cut tokens
  std::vector<int32_t> node_token_;               // token that ends at a node, or -1
  bool begins_cut_[256] = {};                     // a cut token begins with this byte
};

}  // namespace tailrace
