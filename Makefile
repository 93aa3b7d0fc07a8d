# make test      everything that needs no more than Go; what cannot run is told in one line each
# make race      the same tests under the race detector
# make fuzz      every fuzz target for FUZZTIME (10s)
# make bench     the benchmarks of the tree, once
# make build     bin/projhost
GO       ?= go
FUZZTIME ?= 10s
STATICCHECK_VERSION = v0.8.2

.PHONY: test race lint fuzz bench build told

build:
	$(GO) build -trimpath -o bin/projhost ./cmd/projhost

test: lint told
	$(GO) test -shuffle=on -timeout 45m ./...

race:
	$(GO) test -race -shuffle=on -short -timeout 40m ./...

lint:
	@files=$$(gofmt -l $$(git ls-files '*.go' 2>/dev/null || find . -name '*.go')); \
	  if [ -n "$$files" ]; then echo "gofmt would change: $$files"; exit 1; fi
	$(GO) vet ./...
	@if command -v staticcheck >/dev/null 2>&1; then echo staticcheck ./...; staticcheck ./...; \
	  elif echo ",$(PROJHOST_TEST_REQUIRE)," | grep -q ,staticcheck,; then echo "staticcheck is required and missing"; exit 1; \
	  else echo "not run: staticcheck (go install honnef.co/go/tools/cmd/staticcheck@$(STATICCHECK_VERSION))"; fi

# What this machine lacks is told in a line each; the tests pass without it,
# unless PROJHOST_TEST_REQUIRE names it.
told:
	@command -v clang-19 >/dev/null 2>&1 || echo "not run: rebuilding the C guests (Debian: clang-19 lld-19); their committed modules are used"
	@command -v wat2wasm >/dev/null 2>&1 || echo "not run: rebuilding the hostile guests (Debian: wabt); their committed modules are used"
	@[ -n "$$PROJHOST_TEST_LOANS" ] || echo "not run: the real loan log (PROJHOST_TEST_LOANS=FILE); a generated sample stands in"
	@[ -n "$$PROJHOST_TEST_POSTGRES_BIN" ] || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || command -v initdb >/dev/null 2>&1 || \
	  echo "not run: PostgreSQL, but for what PROJHOST_TEST_POSTGRES_DSN serves (Debian: postgresql)"
	@PATH="$$PATH:/usr/sbin"; command -v mariadbd >/dev/null 2>&1 || command -v mysqld >/dev/null 2>&1 || \
	  echo "not run: MariaDB and MySQL, but for what PROJHOST_TEST_MYSQL_DSN serves (Debian: mariadb-server)"
	@PATH="$$PATH:/usr/sbin"; command -v pgbouncer >/dev/null 2>&1 || echo "not run: a pooler in front of PostgreSQL (Debian: pgbouncer)"
	@[ -n "$$PROJHOST_TEST_SQLSERVER_DSN" ] || echo "not run: SQL Server (PROJHOST_TEST_SQLSERVER_DSN=sqlserver://user:password@host); its statements are compared with golden files"
	@[ "$$(id -u)" = 0 ] || echo "not run: the full disk on a real file system (needs root to mount a small one)"
	@[ "$$(id -u)" = 0 ] && PATH="$$PATH:/usr/sbin:/sbin" command -v ip >/dev/null 2>&1 || echo "not run: hosts in network namespaces (need root and ip; Debian: iproute2)"

fuzz:
	@$(GO) list ./... | while read -r pkg; do \
	  $(GO) test -run '^$$' -list '^Fuzz' $$pkg | grep '^Fuzz' | while read -r target; do \
	    echo "fuzz $$pkg $$target"; \
	    $(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) $$pkg </dev/null || exit 1; \
	  done || exit 1; \
	done

bench:
	$(GO) test -run '^$$' -bench . -benchtime 1x ./...
