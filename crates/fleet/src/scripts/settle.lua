-- Charges, takes back, grants; and says {granted, life, retry or -1, out, remaining of each rate, clock}. `out`: so long grants
-- that are held elsewhere may come back, where it is full.
local rates = {}
for at = 9, #ARGV, 4 do
  local numbers = {}
  for of = at, at + 3 do numbers[#numbers + 1] = tonumber(ARGV[of]) end
  rates[#rates + 1] = open(#rates, unpack(numbers))
end

local function least(of)
  local all = NEVER
  for _, rate in ipairs(rates) do all = math.min(all, of(rate)) end
  return all
end

local function most(of)
  local all = 0
  for _, rate in ipairs(rates) do all = math.max(all, of(rate)) end
  return all
end

local function charge(cost)
  if cost > 0 then
    for _, rate in ipairs(rates) do rate.charge(cost) end
  end
end

-- Spent cost is charged, room or not.
charge(spent)

local largest = least(function(rate) return rate.largest end)
back = math.min(back, largest)
if back > 0 then
  for _, rate in ipairs(rates) do rate.give_back(back) end
end

local left, first = least(function(rate) return rate.left() end), math.max(need, 1)
local granted = 0
if (need > 0 or share_ppm > 0) and left >= first then
  granted = math.min(left, math.max(need, want, math.floor(left * share_ppm / 1000000)))
end
charge(granted)

local life, retry, comes_back = 0, -1, 0
if granted > 0 then
  life = math.min(hold, least(function(rate) return rate.ends() end))
  out = math.max(out, now + life + RETURNS)
elseif first > largest then
  retry = NEVER
else
  local full = most(function(rate) return rate.full_for(first) end)
  if full > 0 then retry, comes_back = full, math.max(0, out - now) end
end

-- A key that stands as well as one that was never seen is not kept.
local lasts = most(function(rate) return rate.lasts() end)
if lasts > 0 then
  for _, rate in ipairs(rates) do rate.save() end
  store()
  keep(math.ceil(lasts / 1000))
elseif was_kept then
  redis.call('DEL', KEYS[1])
end

local reply = { granted, life, retry, comes_back }
for _, rate in ipairs(rates) do
  reply[#reply + 1] = math.max(0, rate.left())
end
reply[#reply + 1] = clock
return reply
