#!/bin/sh
# Builds accounts.wasm and accounts-by-pointer.wasm (Debian: clang-19 lld-19). Run
# from the repository's root; the first argument is the folder to build into, by
# default the one of the committed files.
set -eu
out="${1:-testplugins/accounts-c}"
build() {
  clang-19 --target=wasm32-unknown-unknown -O2 -nostdlib -mbulk-memory -fno-builtin -Wall -Wextra \
    -Wl,--no-entry -Wl,--strip-all -I sdk/c "$@" testplugins/accounts-c/accounts.c
}
build -o "$out/accounts.wasm"
build -o "$out/accounts-by-pointer.wasm" -DBY_POINTER
