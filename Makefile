# The two commands that a fresh clone needs, with nothing but Go installed:
#   make demo   generates the outbox of the example, and runs it on a Postgres of its own
#   make test   runs every test and every check
# A Postgres is found on the machine or downloaded: see internal/pgtest.

STATICCHECK = go tool -modfile=internal/tools/go.mod staticcheck
GOLDEN      = ./testdata/golden/...

.PHONY: demo
demo:
	cd examples/orders && go run ../../cmd/outboxgen generate && go run .

.PHONY: test
test: check
	go test -race -timeout 20m ./...
	cd bench && go test ./...
	cd examples/broker && go test ./...

# The tests of the store on each version of Postgres that it supports, with
# programs that come from npm.
.PHONY: test-matrix
test-matrix:
	internal/pgtest/matrix.sh ./templates/outbox

# Goldens lie under testdata, and the benchmarks and the example with a broker are
# modules of their own, so that ./... passes them by.
.PHONY: check
check:
	@test -z "$$(gofmt -l $$(git ls-files -co --exclude-standard '*.go'))" || { echo "gofmt would change:"; gofmt -l $$(git ls-files -co --exclude-standard '*.go'); exit 1; }
	go vet ./... $(GOLDEN)
	$(STATICCHECK) ./... $(GOLDEN)
	@for spec in bench/outbox.yaml examples/*/outbox.yaml; do go run ./cmd/outboxgen check -f $$spec || exit 1; done
	cd bench && go vet ./...
	cd bench && go tool -modfile=../internal/tools/go.mod staticcheck ./...
	cd examples/broker && go vet ./...
	cd examples/broker && go tool -modfile=../../internal/tools/go.mod staticcheck ./...

# Records the golden output anew. Read the diff as its consumer would.
.PHONY: golden
golden:
	go test ./generator ./generator/emit -update
	cd examples/orders && go run ../../cmd/outboxgen generate
	cd examples/webhooks && go run ../../cmd/outboxgen generate
	cd examples/broker && go generate ./...

# A small size, to see that it works; "cd bench && go run ." gives figures.
.PHONY: bench
bench:
	cd bench && go run . -quick
