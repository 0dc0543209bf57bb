-- KEYS[1]: the state of one key. ARGV, all integers: spent, back, back_age, need, want, share_ppm, hold, latest, and
-- four of each rate; those that a family does not need are 0. Times are microseconds. No number exceeds NEVER, up to which integers are exact.
local NEVER = 9007199254740991 -- 2^53 - 1
local MOST = 1099511627776 -- 2^40: a slot or a window counts no more, so that sums are exact
local RETURNS = 350000 -- what is left of a grant has come back so long after its end: a gateway's round, and a report's time

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
local hold, latest = tonumber(ARGV[7]), tonumber(ARGV[8])

-- The reply of a settle that is not done.
local function not_done()
  local reply = { -1, 0, -1, 0 }
  for _ = 9, #ARGV, 4 do reply[#reply + 1] = 0 end
  reply[#reply + 1] = clock
  return reply
end

-- The asker waits no more: a grant would be lost, and a report be charged twice.
if clock > latest then return not_done() end

