#!/usr/bin/env bash
# Holds the admin API of a release build against its own OpenAPI document: schemathesis sends what the document allows and
# what it does not. No answer may be a 5xx, or one that the document does not describe. Called by `make schemathesis`.
#
# usage: tests/schemathesis/run.sh BINARY SCHEMATHESIS [EXAMPLES]
set -euo pipefail
hooks=$(realpath "$(dirname "$0")/hooks.py")
binary=$(realpath "$1") schemathesis=$2 examples=${3:-50}
directory=$(mktemp -d)
gateway=
trap '[ -z "$gateway" ] || { kill "$gateway" 2>/dev/null; wait "$gateway" 2>/dev/null; }; rm -rf "$directory"' EXIT
cd "$directory"

token=$("$binary" token --json --name schemathesis --role rules)
field() { printf '%s' "$token" | sed -n "s/.*\"$1\": *\"\([^\"]*\)\".*/\1/p"; }
printf 'default = "free"\n[plan.free]\n[plan.gold]\nper-key = { rate = "9/s" }\n[keys]\n' >plans.toml
cat >gateway.toml <<EOF
[[listener]]
address = "127.0.0.1:0"
[admin]
address = "127.0.0.1:0"
tokens = [{ name = "schemathesis", sha256 = "$(field sha256)", role = "rules" }]
[server]
state_file = "counts"
[dead_letter]
[[upstream]]
name = "app"
servers = ["echo:a", "echo:b"]
[[limit]]
name = "per-key"
key = "header:x-key"
rate = "2/h"
[[bandwidth]]
name = "slow"
rate = "1MiB/s"
[[route]]
name = "all"
upstream = "app"
limits = ["per-key"]
plans = { file = "plans.toml", key = "header:x-key" }
EOF
"$binary" run >out 2>log &
gateway=$!
for _ in $(seq 100); do
  admin=$(sed -n 's#.*\(http://[0-9.:]*\)/metrics.*#\1#p' out)
  [ -n "$admin" ] && break
  sleep 0.1
done
front=$(sed -n 's#.*listening *\(http://[0-9.:]*\).*#\1#p' out)
for _ in 1 2 3 4; do curl -s -o /dev/null -H 'x-key: a' "$front/"; done

# /v1/check is of a listener that decides; /upgrade starts another process, and the stream of dead letters has no end. The names in paths are mostly of things that are
# not there, so a 404 is no surprise; each problem is described.
SCHEMATHESIS_HOOKS=$hooks "$schemathesis" run "$admin/api/openapi.json" --header "Authorization: Bearer $(field token)" \
  --checks not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance \
  --exclude-path /upgrade --exclude-path /api/v1/dead-letters/stream --exclude-path /v1/check \
  --max-examples "$examples" --phases examples,coverage,fuzzing --continue-on-failure --warnings off --no-color || {
  echo "the end of the gateway's log:" >&2
  tail -20 log >&2
  exit 1
}
kill -0 "$gateway"
