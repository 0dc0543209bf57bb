-- The load of wrk, and its result in one line. Usage: wrk ... -s load.lua URL -- get|post|keys

function init(args)
  local mode = args[1] or "get"
  if mode == "post" then
    wrk.method = "POST"
    wrk.headers["Content-Type"] = "application/octet-stream"
    wrk.body = string.rep("z", 10240)
  elseif mode == "keys" then
    -- Made once, sent in turn: ten thousand keys in an order that is not that of their digits.
    local requests, count, at = {}, 10000, 0
    for key = 1, count do
      requests[key] = wrk.format("GET", wrk.path, { ["X-Api-Key"] = string.format("key-%08d", key * 7919 % 100000000) })
    end
    function request()
      at = at % count + 1
      return requests[at]
    end
  end
end

function done(summary, latency, _)
  local errors = summary.errors
  io.write(string.format(
    "RESULT requests=%d microseconds=%d p50=%d p99=%d broken=%d bad_status=%d\n",
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    errors.connect + errors.read + errors.write + errors.timeout, errors.status))
end
