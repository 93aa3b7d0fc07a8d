package plugins

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/tetratelabs/wazero"
)

// compileCache is the folder of one module's compiled code. The engine checks
// no more than a part of what it reads back, and a bit that was flipped in the
// rest would be run: so the folder's files are compared with their sums first,
// and what does not fit is removed and compiled again.
type compileCache struct{ dir string }

const (
	sumsName = "projhost.sums"
	// tmpAge is after how long a file that was being written is nobody's.
	tmpAge = time.Hour
)

func openCompileCache(root, digest string) (*compileCache, wazero.CompilationCache, error) {
	c := &compileCache{dir: filepath.Join(root, strings.TrimPrefix(digest, "sha256:"))}
	if err := c.verify(); err != nil {
		return nil, nil, err
	}
	// The engine would make its folders readable for this user only as well.
	cc, err := wazero.NewCompilationCacheWithDir(c.dir)
	if err != nil {
		return nil, nil, err
	}
	return c, cc, nil
}

// verify removes every file whose sum is unknown or wrong.
func (c *compileCache) verify() error {
	want := map[string]string{}
	sums, err := os.ReadFile(filepath.Join(c.dir, sumsName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for line := range strings.Lines(string(sums)) {
		if sum, name, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "  "); ok {
			want[name] = sum
		}
	}
	return c.walk(func(path, name string, d fs.DirEntry) error {
		if strings.HasSuffix(name, ".tmp") {
			if info, err := d.Info(); err != nil || time.Since(info.ModTime()) < tmpAge {
				return nil
			}
		} else if sum, err := fileSum(path); err == nil && sum == want[name] {
			return nil
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	})
}

// seal writes the sums of what is there.
func (c *compileCache) seal() error {
	var sums bytes.Buffer
	err := c.walk(func(path, name string, _ fs.DirEntry) error {
		if strings.HasSuffix(name, ".tmp") {
			return nil
		}
		sum, err := fileSum(path)
		if err == nil {
			fmt.Fprintf(&sums, "%s  %s\n", sum, name)
		}
		return err
	})
	if err != nil || sums.Len() == 0 {
		return err
	}
	path := filepath.Join(c.dir, sumsName)
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, sums.Bytes()) {
		return nil
	}
	tmp, err := os.CreateTemp(c.dir, sumsName+".*.tmp")
	if err != nil {
		return err
	}
	_, err = tmp.Write(sums.Bytes())
	if err := errors.Join(err, tmp.Close()); err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	return os.Rename(tmp.Name(), path)
}

// removeIfEmpty takes the folders of a module that was not compiled away.
func (c *compileCache) removeIfEmpty() {
	subs, err := os.ReadDir(c.dir)
	if err != nil {
		return
	}
	for _, d := range subs {
		_ = os.Remove(filepath.Join(c.dir, d.Name())) // refused where something lies in it
	}
	_ = os.Remove(c.dir)
}

// walk visits the cache's files, apart from the sums.
func (c *compileCache) walk(visit func(path, name string, d fs.DirEntry) error) error {
	err := filepath.WalkDir(c.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(c.dir, path)
		if err != nil || name == sumsName {
			return err
		}
		return visit(path, filepath.ToSlash(name), d)
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func fileSum(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// compiled is a module with the runtime it lives in.
type compiled struct {
	runtime wazero.Runtime
	cache   wazero.CompilationCache
	module  wazero.CompiledModule
}

func (c *compiled) close(ctx context.Context) error {
	return errors.Join(c.runtime.Close(ctx), c.cache.Close(ctx))
}
