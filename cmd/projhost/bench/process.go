package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// process is a host in a process of its own.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed once err is there
	err   error

	mu  sync.Mutex
	log bytes.Buffer // the end of what it said
}

// endsWithin is how long a host may take to stop before it is killed.
const endsWithin = time.Minute

// logKept bounds what is kept of a host's log.
const logKept = 4 << 10

func startProcess(ctx context.Context, program string, args ...string) (*process, error) {
	if program == "" {
		var err error
		if program, err = os.Executable(); err != nil {
			return nil, fmt.Errorf("find this program, to run hosts: %w", err)
		}
	}
	p := &process{cmd: exec.CommandContext(ctx, program, args...), ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p, p
	p.cmd.Cancel = func() error { p.interrupt(); return nil }
	p.cmd.WaitDelay = endsWithin
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("run a host: %w", err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// interrupt asks the host to end; it is killed if it cannot be asked, or does not.
func (p *process) interrupt() {
	if p.cmd.Process.Signal(os.Interrupt) != nil {
		_ = p.cmd.Process.Kill()
		return
	}
	late := time.AfterFunc(endsWithin, func() { _ = p.cmd.Process.Kill() })
	go func() {
		<-p.ended
		late.Stop()
	}()
}

// Write implements io.Writer for the host's output.
func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.log.Len() > logKept {
		p.log.Next(p.log.Len() - logKept)
	}
	return p.log.Write(b)
}

func (p *process) said() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.TrimSpace(p.log.String())
}

// writeHostConfig writes the configuration of hosts. They share a cache of modules;
// the plugin has no time limit.
func writeHostConfig(dir, driver, dsn, module, more string) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "data_dir = %s\n", tomlText(dir))
	fmt.Fprintf(&b, "[store]\ndriver = %s\ndsn = %s\ntable_prefix = %s\n", tomlText(driver), tomlText(dsn), tomlText(tablePrefix))
	b.WriteString("[http]\nlisten = \"127.0.0.1:0\"\n[log]\nlevel = \"warn\"\nformat = \"json\"\n" + more)
	fmt.Fprintf(&b, "[[plugin]]\nname = %s\npath = %s\ntimeout = \"0s\"\n", tomlText(projection), tomlText(module))
	file := filepath.Join(dir, "hosts.toml")
	return file, os.WriteFile(file, []byte(b.String()), 0o600) // the connection string may hold a password
}

// tomlText spells a string as JSON does, which TOML reads alike, for a
// configuration that expands variables.
func tomlText(s string) string {
	b, _ := json.Marshal(strings.ReplaceAll(s, "${", "$${"))
	return string(b)
}

// keyedModules puts the modules where hosts find them, by key.
func (b *run) keyedModules(ctx context.Context) (map[string]string, error) {
	files := make(map[string]string)
	for _, k := range keyedSources {
		wasm, err := k.get(ctx)
		if err != nil {
			return nil, err
		}
		files[k.key] = filepath.Join(b.loader.dir, k.key+".wasm")
		if err := os.WriteFile(files[k.key], wasm, 0o600); err != nil {
			return nil, err
		}
	}
	return files, nil
}
