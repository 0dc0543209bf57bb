-- KEYS[1]: a hash, the state of one key. ARGV, all integers: spent, back, back_age, need, want, share_ppm, hold, and three of
-- each rate. Times are microseconds. No number exceeds NEVER, up to which integers are exact.
local NEVER = 9007199254740991 -- 2^53 - 1
local MOST = 1099511627776 -- 2^40: a slot or a window counts no more, so that sums are exact

-- Never tostring: it cuts large numbers.
local function text(number)
  return string.format('%.0f', number)
end

-- A number of the state; 0 for a text that is none, because somebody else wrote it.
local function number(word)
  local value = tonumber(word)
  if not value or value ~= value or value < 0 or value > NEVER then return 0 end
  return math.floor(value)
end

local spent, back, back_age = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local need, want, share_ppm = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local hold = tonumber(ARGV[7])

local state = {}
local fields = redis.call('HGETALL', KEYS[1])
for at = 1, #fields, 2 do
  state[fields[at]] = number(fields[at + 1])
end

-- The clock may be set back: it stands still then.
local now = math.max(clock, state.at or 0)
local since = math.max(0, now - back_age)

-- The fields to write.
local written = { 'at', text(now) }
local function write(field, value)
  written[#written + 1] = field
  written[#written + 1] = text(value)
end

