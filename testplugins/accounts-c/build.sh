#!/bin/sh
# Builds accounts.wasm (Debian: clang-19 lld-19). Run from the repository's root;
# the first argument is the output, by default the committed file.
set -eu
clang-19 --target=wasm32-unknown-unknown -O2 -nostdlib -mbulk-memory -fno-builtin -Wall -Wextra \
  -Wl,--no-entry -Wl,--strip-all -I sdk/c \
  -o "${1:-testplugins/accounts-c/accounts.wasm}" testplugins/accounts-c/accounts.c
