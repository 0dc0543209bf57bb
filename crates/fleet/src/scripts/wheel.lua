-- The timer wheel and the sliding window. Of each rate: limit, width of a slot, slots that are summed, and how much one slot
-- takes, 0 for no such cap. Fields: RATE:SLOT, SLOT counted from 1970.
local slots_of = {}
for field, count in pairs(state) do
  local rate, slot = string.match(field, '^(%d+):(%d+)$')
  if rate then
    slots_of[rate] = slots_of[rate] or {}
    slots_of[rate][tonumber(slot)] = count
  end
end

local function open(index, limit, width, summed, cap)
  local slots, sum, changed = {}, 0, {}
  local newest = math.floor(now / width)
  local oldest = newest - summed + 1
  for slot, count in pairs(slots_of[text(index)] or {}) do
    if slot >= oldest and slot <= newest then
      slots[slot] = count
      sum = sum + count
    else
      redis.call('HDEL', KEYS[1], text(index) .. ':' .. text(slot))
    end
  end

  local function set(slot, count)
    sum = sum - (slots[slot] or 0) + count
    slots[slot] = count
    changed[slot] = true
  end

  return {
    largest = cap > 0 and cap or limit,
    left = function()
      if cap == 0 then return limit - sum end
      return math.min(limit - sum, cap - (slots[newest] or 0))
    end,
    charge = function(cost)
      set(newest, math.min((slots[newest] or 0) + cost, MOST))
    end,
    -- Out of the slot of that instant. What is not in it was charged later, or a little before.
    give_back = function(cost)
      local first = math.floor(since / width)
      local function take_out(slot)
        local there = slots[slot] or 0
        if there >= MOST then cost = 0 end
        local less = math.min(there, cost)
        if less > 0 then set(slot, there - less) end
        cost = cost - less
      end
      if first < oldest then return end
      for slot = first, newest do take_out(slot) end
      for slot = first - 1, oldest, -1 do take_out(slot) end
    end,
    -- When enough of the oldest slots have gone; a later slot is empty yet.
    full_for = function(cost)
      local excess, gone = sum + cost - limit, 0
      if excess <= 0 then
        local fits = cap == 0 or (slots[newest] or 0) + cost <= cap
        return fits and 0 or (newest + 1) * width - now
      end
      for slot = oldest, newest do
        gone = gone + (slots[slot] or 0)
        if gone >= excess then return (slot + summed) * width - now end
      end
      return NEVER
    end,
    ends = function() return cap == 0 and NEVER or (newest + 1) * width - now end,
    -- Until the newest of what is counted has gone.
    lasts = function()
      for slot = newest, oldest, -1 do
        if (slots[slot] or 0) > 0 then return (slot + summed) * width - now end
      end
      return 0
    end,
    save = function()
      for slot in pairs(changed) do
        local field = text(index) .. ':' .. text(slot)
        if slots[slot] > 0 then write(field, slots[slot]) else redis.call('HDEL', KEYS[1], field) end
      end
    end,
  }
end

