
-- The fixed window of a calendar. Of each rate: limit, and when the window begins and ends, by the asker's zone. Fields: RATE:from
-- and RATE:until, when the window of the count began and ends, and RATE:count.

-- The asker thought that it was another day: it asks again.
for at = 9, #ARGV, 4 do
  if clock < tonumber(ARGV[at + 1]) or clock >= tonumber(ARGV[at + 2]) then return not_done() end
end

local function open(index, limit, from, to)
  local name = text(index)
  local began, ends, count = state[name .. ':from'], state[name .. ':until'], state[name .. ':count'] or 0
  -- A window that has not ended is counted on in: the clock may stand still in it, or the asker know other rules of the zone.
  -- Not one that is longer than any: it is damaged.
  if began and ends and began <= now and now < ends and ends - began <= 2 * (to - from) then
    from, to = began, ends
  else
    count = 0
  end

  return {
    largest = limit,
    left = function() return limit - count end,
    charge = function(cost) count = math.min(count + cost, MOST) end,
    give_back = function(cost)
      if since >= from and count < MOST then count = math.max(0, count - cost) end
    end,
    full_for = function(cost)
      if count + cost <= limit then return 0 end
      return math.max(0, to - now)
    end,
    ends = function()
      if count == 0 then return NEVER end
      return math.max(0, to - now)
    end,
    lasts = function()
      if count == 0 then return 0 end
      return math.max(0, to - now)
    end,
    save = function()
      write(name .. ':from', from)
      write(name .. ':until', to)
      write(name .. ':count', count)
    end,
  }
end
