-- Limits of one tenant, in one atomic operation: the same steps as memory.py, on Redis' own clock.
--
-- KEYS[1]  prefix of everything of the tenant, with its hash tag: {tailrace:NAME}
-- ARGV     op, hold, lease in microseconds, line (0/1), force (0/1), done (0/1), number of accounts,
--          then per account its name and 8 caps, then two rows of 8 amounts:
--          reserve, grow: exact, learned;  change: spent, known, and a third row: extra
--
-- PREFIX:leases      sorted set: hold -> when its lease ends (microseconds)
-- PREFIX:hold:ID     hash: a = accounts (names, tab separated), s1..s8 spent, NAME:1..NAME:8 held; or e = 1, ended
-- PREFIX:acct:NAME   hash: t = when levels were brought up to date, l1..l8 level, h1..h8 held, p1..p8 promised,
--                    o6..o8 = what live holds have spent of budgets, e7, e8 = when the day and the month end
--
-- Counters: 1 requests, 2 prompt tokens, 3 output tokens, 4 device microseconds, 5 sequences, 6 budget microseconds,
--           7 millionths of money in a day of UTC, 8 in a month.
-- Kinds: 0 granted, 1 partial, 2 over, 3 exhausted, 4 never.

local SIZE, SEQUENCES, BUDGET, MONEY, MONTH = 8, 5, 6, 7, 8
local TOLERANCE, MINUTE, DAY, ENDED, PROMISES = 1e-6, 60e6, 86400e6, 60000, 10
local prefix = KEYS[1]
local op, id, lease = ARGV[1], ARGV[2], tonumber(ARGV[3])
local line, force, done = ARGV[4] == '1', ARGV[5] == '1', ARGV[6] == '1'
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1e6 + tonumber(clock[2])
local hold_key, leases = prefix .. ':hold:' .. id, prefix .. ':leases'

local at = 8
local accounts = {}
for i = 1, tonumber(ARGV[7]) do
  local account = {name = ARGV[at], caps = {}}
  for c = 1, SIZE do account.caps[c] = tonumber(ARGV[at + c]) end
  accounts[i] = account
  at = at + 1 + SIZE
end
local function row()
  local amounts = {}
  for c = 1, SIZE do amounts[c] = tonumber(ARGV[at + c - 1] or '0') end
  at = at + SIZE
  return amounts
end
local first, second, third = row(), row(), row()

local function exact(c) return c <= 2 end
local function rated(c) return c <= 4 end
local function whole(x) return string.format('%.0f', x) end
local function real(x) return string.format('%.17g', x) end

-- When the day or the month of now ends. A year of 365.2425 days from 1 March on has its leap day last.
local function window_end(c)
  local day = math.floor(now / DAY)
  if c == MONEY then return (day + 1) * DAY end
  local era = math.floor((day + 719468) / 146097)
  local of_era = day + 719468 - era * 146097
  local leaps = math.floor(of_era / 1460) - math.floor(of_era / 36524) + math.floor(of_era / 146096)
  local year = math.floor((of_era - leaps) / 365)
  local of_year = of_era - (365 * year + math.floor(year / 4) - math.floor(year / 100))
  local month = math.floor((5 * of_year + 2) / 153)  -- 0 is March; 11, February, ends with the year
  local following = math.floor((153 * (month + 1) + 2) / 5)
  if month == 11 then
    local leap = (year + 1) % 4 == 0 and ((year + 1) % 100 ~= 0 or (year + 1) % 400 == 0)
    following = leap and 366 or 365
  end
  return (day - of_year + following) * DAY
end

local function free(other)
  local key = prefix .. ':hold:' .. other
  local names = redis.call('HGET', key, 'a')
  if names then
    for name in string.gmatch(names, '[^\t]+') do
      for c = 1, SIZE do
        local held = tonumber(redis.call('HGET', key, name .. ':' .. c) or '0')
        if held ~= 0 then redis.call('HINCRBY', prefix .. ':acct:' .. name, 'h' .. c, whole(-held)) end
      end
      for c = BUDGET, MONTH do
        local spent = tonumber(redis.call('HGET', key, 's' .. c) or '0')
        if spent ~= 0 then redis.call('HINCRBY', prefix .. ':acct:' .. name, 'o' .. c, whole(-spent)) end
      end
    end
  end
  redis.call('DEL', key)
  redis.call('ZREM', leases, other)
end

for _, other in ipairs(redis.call('ZRANGEBYSCORE', leases, '-inf', whole(now))) do free(other) end

for _, account in ipairs(accounts) do
  local key = prefix .. ':acct:' .. account.name
  local flat = redis.call('HGETALL', key)
  local known = {}
  for i = 1, #flat, 2 do known[flat[i]] = tonumber(flat[i + 1]) end
  local passed = math.max(now - (known.t or now), 0)
  account.key, account.level, account.held, account.promised, account.open, account.ends = key, {}, {}, {}, {}, {}
  for c = 1, SIZE do
    local fallen = rated(c) and account.caps[c] / MINUTE * passed or 0
    account.level[c] = math.max((known['l' .. c] or 0) - fallen, 0)
    account.promised[c] = math.max((known['p' .. c] or 0) - fallen, 0)
    account.held[c] = known['h' .. c] or 0
  end
  for c = BUDGET, MONTH do account.open[c] = known['o' .. c] or 0 end
  for c = MONEY, MONTH do
    account.ends[c] = known['e' .. c] or 0
    if now >= account.ends[c] then account.level[c], account.ends[c] = account.open[c], window_end(c) end
  end
end

local function save()
  for _, account in ipairs(accounts) do
    local fields, lasting = {'t', whole(now)}, account.caps[BUDGET] > 0
    for c = 1, SIZE do
      table.insert(fields, 'l' .. c); table.insert(fields, real(account.level[c]))
      table.insert(fields, 'p' .. c); table.insert(fields, real(account.promised[c]))
      table.insert(fields, 'h' .. c); table.insert(fields, whole(account.held[c]))
    end
    for c = BUDGET, MONTH do
      table.insert(fields, 'o' .. c); table.insert(fields, whole(account.open[c]))
    end
    for c = MONEY, MONTH do
      table.insert(fields, 'e' .. c); table.insert(fields, whole(account.ends[c]))
    end
    redis.call('HSET', account.key, unpack(fields))
    local kept = 2 * DAY + (account.caps[MONTH] > 0 and account.ends[MONTH] - now or 0)
    if lasting then redis.call('PERSIST', account.key) else redis.call('PEXPIRE', account.key, whole(kept / 1000)) end
  end
end

-- What is held of an expectation: never more than there could ever be room for, or it would wait for ever.
local function wanted(amount, c, cap, level)
  if c == SEQUENCES then return amount end
  if c >= BUDGET then return math.min(amount, math.max(math.floor(cap - level), 1)) end
  return math.min(amount, cap)
end

-- kind and wait (microseconds; -1: time does not help) of one counter
local function look(account, c)
  local cap, level, held = account.caps[c], account.level[c], account.held[c]
  local rate = cap / MINUTE
  if exact(c) then
    local want = first[c]
    if want > cap then return 4, -1 end
    local over = level + held + want - cap
    if over <= TOLERANCE then return 0, -1 end
    return 2, (over + account.promised[c]) / rate
  end
  local want = wanted(second[c], c, cap, level)
  if c == SEQUENCES then
    if want > cap then return 4, -1 end
    return held + want > cap and 1 or 0, -1
  end
  if want > 0 and c < BUDGET and level >= cap then return 2, (level - cap + 1 + account.promised[c]) / rate end
  if want > 0 and c >= BUDGET and level - account.open[c] >= cap then
    return 3, c >= MONEY and account.ends[c] - now or -1
  end
  local over = level + held + want - cap
  if want == 0 or over <= TOLERANCE then return 0, -1 end
  return 1, c >= BUDGET and -1 or over / rate
end

local function worst(from)
  local found = {kind = 0, wait = -1, counter = 0, account = 0}
  for c = from, SIZE do
    for i, account in ipairs(accounts) do
      if account.caps[c] > 0 then
        local kind, wait = look(account, c)
        if kind > found.kind or (kind == found.kind and math.max(wait, 0) > math.max(found.wait, 0)) then
          found = {kind = kind, wait = wait, counter = c, account = i}
        end
      end
    end
  end
  return found
end

local function say(found)
  local account = accounts[found.account]
  local value, cap, held = 0, 0, 0
  if account then
    held = account.held[found.counter]
    value = account.level[found.counter] + held
    cap = account.caps[found.counter]
  end
  return {found.kind, found.counter, found.account, real(found.wait), real(value), whole(cap), whole(held)}
end

local function take(amounts)
  for _, account in ipairs(accounts) do
    for c = 1, SIZE do
      local cap = account.caps[c]
      if cap > 0 then
        local amount = exact(c) and amounts[c] or wanted(amounts[c], c, cap, account.level[c])
        if amount ~= 0 then
          account.held[c] = account.held[c] + amount
          redis.call('HINCRBY', hold_key, account.name .. ':' .. c, whole(amount))
        end
      end
    end
  end
end

local function put(spent)
  local names, fields = {}, {}
  for i, account in ipairs(accounts) do names[i] = account.name end
  table.insert(fields, 'a'); table.insert(fields, table.concat(names, '\t'))
  for c = 1, SIZE do table.insert(fields, 's' .. c); table.insert(fields, whole(spent[c])) end
  redis.call('HSET', hold_key, unpack(fields))
  for _, account in ipairs(accounts) do
    for c = BUDGET, MONTH do account.open[c] = account.open[c] + spent[c] end
  end
end

local function renew()
  redis.call('ZADD', leases, whole(now + lease), id)
end

local NONE = {0, 0, 0, 0, 0, 0, 0, 0}
local NOTHING = {0, 0, 0, '-1', '0', '0', '0'}

-- Calls of one gateway may overtake each other: what comes after a hold has ended changes nothing.
if op ~= 'standing' and redis.call('HEXISTS', hold_key, 'e') == 1 then return NOTHING end

if op == 'reserve' then
  local found = worst(1)
  if found.kind >= 2 and not force then
    if found.kind == 2 then
      local account, c = accounts[found.account], found.counter
      local amount = exact(c) and first[c] or math.min(second[c], account.caps[c])
      account.promised[c] = math.min(account.promised[c] + amount, PROMISES * account.caps[c])
    end
    local answer = say(found)
    save()
    return answer
  end
  local learned = false
  for c = 1, SIZE do learned = learned or second[c] ~= 0 end
  if line and found.kind == 0 and learned then found = {kind = 1, wait = -1, counter = 0, account = 0} end
  local answer = say(found)
  put(NONE)
  take(first)
  if found.kind == 0 or force then take(second) end
  renew()
  save()
  return answer
end

if op == 'grow' then
  if redis.call('EXISTS', hold_key) == 0 then
    put(NONE)
    take(first)
  end
  local found = worst(3)
  local answer = say(found)
  if found.kind == 0 or force then take(second) end
  renew()
  save()
  return answer
end

if op == 'change' then
  local spent, known, extra = first, second, third
  if redis.call('EXISTS', hold_key) == 0 then put(known) end
  local fields = {}
  for c = 1, SIZE do
    local delta = spent[c] - tonumber(redis.call('HGET', hold_key, 's' .. c) or '0')
    table.insert(fields, 's' .. c); table.insert(fields, whole(spent[c]))
    for _, account in ipairs(accounts) do
      local field = account.name .. ':' .. c
      local held = tonumber(redis.call('HGET', hold_key, field) or '0')
      if account.caps[c] > 0 and c ~= SEQUENCES then account.level[c] = account.level[c] + delta end
      local left = done and 0 or math.max(held - delta + extra[c], 0)
      if account.caps[c] == 0 then left = math.min(left, held) end
      account.held[c] = account.held[c] + left - held
      if left ~= held then table.insert(fields, field); table.insert(fields, whole(left)) end
      if c >= BUDGET then account.open[c] = account.open[c] + delta - (done and spent[c] or 0) end
    end
  end
  if done then
    redis.call('DEL', hold_key)
    redis.call('ZREM', leases, id)
    redis.call('HSET', hold_key, 'e', '1')
    redis.call('PEXPIRE', hold_key, ENDED)
  else
    redis.call('HSET', hold_key, unpack(fields))
    renew()
  end
  save()
  return NOTHING
end

-- standing: held and levels of the first account
local answer = {}
for c = 1, SIZE do table.insert(answer, whole(accounts[1].held[c])) end
for c = 1, SIZE do table.insert(answer, real(accounts[1].level[c])) end
save()
return answer
