// Package guest builds plugins written in Go to WebAssembly with the local Go
// toolchain and keeps the result by content hash in the user's cache folder, so
// that tests, the demo and the benchmarks pay for a build once.
//
// It promises the same bytes for the same sources and toolchain, and an error
// that says what is missing and how to get it. It knows nothing of what the
// module does.
package guest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sort"
	"strings"
)

// ErrNoGo is matched by the errors of [Compile] on a machine without the Go
// toolchain.
var ErrNoGo = errors.New("the Go toolchain is not on the PATH: install it from https://go.dev/dl/ (any release from 1.26) and try again")

// ErrNoSource is matched by the errors of [Compile] where the project's sources
// are not to be found.
var ErrNoSource = errors.New("the project's sources are not here: run from a clone of the repository")

// TB is what [Build] needs of a *testing.T or *testing.B; this package must not
// bring package testing into the shipped binary.
type TB interface {
	Helper()
	Fatalf(format string, args ...any)
}

// Build returns the module of the Go plugin in a folder of this repository, for
// instance "testplugins/loans". It fails the test when the plugin does not build.
func Build(t TB, dir string) []byte {
	t.Helper()
	wasm, err := Compile(context.Background(), dir)
	if err != nil {
		t.Fatalf("build guest: %v", err)
	}
	return wasm
}

// Compile returns the module of the Go plugin in dir, which is slash-separated
// and relative to the root of this repository. The folder may import the
// standard library and this repository's sdk and abi.
func Compile(ctx context.Context, dir string) ([]byte, error) {
	root, err := moduleRoot()
	if err != nil {
		return nil, fmt.Errorf("build %s: %w", dir, err)
	}
	goTool, err := exec.LookPath("go")
	if err != nil {
		return nil, fmt.Errorf("build %s: %w", dir, ErrNoGo)
	}
	version, err := run(ctx, root, goTool, "env", "GOVERSION")
	if err != nil {
		return nil, fmt.Errorf("build %s: %w", dir, err)
	}
	key, err := sourceHash(root, strings.TrimSpace(version), dir, "sdk", "abi")
	if err != nil {
		return nil, fmt.Errorf("build %s: %w", dir, err)
	}
	cached := cachePath(key)
	if wasm, err := os.ReadFile(cached); err == nil && isModule(wasm) {
		return wasm, nil
	}
	wasm, err := compile(ctx, root, goTool, dir)
	if err != nil {
		return nil, fmt.Errorf("build %s: %w", dir, err)
	}
	// The cache is a convenience: a folder that cannot be written costs time only.
	_ = keep(cached, wasm)
	return wasm, nil
}

// Committed returns a module that the repository holds as bytes, because it
// takes another tool chain to build it; file is slash-separated and relative to
// the root.
func Committed(file string) ([]byte, error) {
	root, err := moduleRoot()
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	wasm, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(file)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("this clone has no %s", file)
	}
	return wasm, err
}

// compile runs the build an author would run.
func compile(ctx context.Context, root, goTool, dir string) ([]byte, error) {
	tmp, err := os.MkdirTemp("", "projhost-guest-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	out := filepath.Join(tmp, "guest.wasm")
	// -trimpath: the same bytes wherever the repository lies. -buildvcs=false:
	// and whatever was committed last.
	_, err = run(ctx, root, goTool, "build", "-buildmode=c-shared", "-trimpath", "-buildvcs=false",
		"-ldflags=-s -w", "-o", out, "./"+filepath.ToSlash(dir))
	if err != nil {
		return nil, err
	}
	wasm, err := os.ReadFile(out)
	if err != nil {
		return nil, err
	}
	if !isModule(wasm) {
		return nil, errors.New("the build left no WebAssembly module; is the folder a main package?")
	}
	return wasm, nil
}

// run executes the go command for wasip1 and returns its output; its error
// carries what the command wrote.
func run(ctx context.Context, root, goTool string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, goTool, args...)
	cmd.Dir = root
	// The environment's own flags (coverage, race, other modes) are for the host.
	cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "GOFLAGS=", "CGO_ENABLED=0", "GOWORK=off")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("go %s: %w\n%s", args[0], err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

func isModule(wasm []byte) bool {
	return bytes.HasPrefix(wasm, []byte("\x00asm\x01\x00\x00\x00"))
}

// sourceHash names the build of dir: the toolchain, go.mod and every source
// file of the folders given.
func sourceHash(root, version string, dirs ...string) (string, error) {
	h := sha256.New()
	fmt.Fprintf(h, "guest 1 %s\n", version)
	files := []string{filepath.Join(root, "go.mod")}
	for _, dir := range dirs {
		path := filepath.Join(root, filepath.FromSlash(dir))
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) && dir != dirs[0] {
			continue
		}
		err := filepath.WalkDir(path, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if !d.IsDir() && strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
				files = append(files, path)
			}
			return nil
		})
		if err != nil {
			return "", err
		}
	}
	sort.Strings(files)
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		name, err := filepath.Rel(root, file)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %d\n", filepath.ToSlash(name), len(content))
		h.Write(content)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func cachePath(key string) string {
	base, err := os.UserCacheDir()
	if err != nil {
		base = os.TempDir()
	}
	return filepath.Join(base, "projhost", "guests", key+".wasm")
}

// keep writes a file whole or not at all: other processes read it meanwhile.
func keep(path string, wasm []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	if _, err := f.Write(wasm); err != nil {
		f.Close()
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// moduleRoot finds the repository: above the working folder (tests, a clone), or
// where this file was compiled (go run from elsewhere).
func moduleRoot() (string, error) {
	if dir, err := os.Getwd(); err == nil {
		if root, ok := rootAbove(dir); ok {
			return root, nil
		}
	}
	if _, file, _, ok := runtime.Caller(0); ok {
		if root, ok := rootAbove(filepath.Dir(file)); ok {
			return root, nil
		}
	}
	return "", ErrNoSource
}

func rootAbove(dir string) (string, bool) {
	for {
		mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && bytes.HasPrefix(mod, []byte("module github.com/projhost/projhost\n")) {
			return dir, true
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", false
		}
		dir = parent
	}
}
