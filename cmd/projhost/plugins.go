package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/hashicorp/go-hclog"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/projhost/projhost/host/api"
	"github.com/projhost/projhost/internal/config"
	"github.com/projhost/projhost/plugins"
)

func bytesIEC(n uint64) string { return humanize.IBytes(n) }

func (c *cli) pluginsCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "plugins", Short: "Check modules, list and show what the host runs"}
	cmd.AddCommand(c.pluginsCheckCommand(), &cobra.Command{
		Use:   "list",
		Short: "List the plugins of the running host",
		Args:  exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			var page api.Page[api.Plugin]
			if err := cl.get(cmd.Context(), "/v1/plugins", nil, &page); err != nil {
				return fmt.Errorf("list plugins: %w", err)
			}
			if c.json {
				return c.printJSON(page)
			}
			c.printPlugins(page.Items)
			return nil
		},
	}, &cobra.Command{
		Use:   "show NAME",
		Short: "Show one plugin of the running host",
		Args:  exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			var p api.Plugin
			if err := cl.get(cmd.Context(), path("plugins", args[0]), nil, &p); err != nil {
				return fmt.Errorf("show plugin %s: %w", args[0], err)
			}
			if c.json {
				return c.printJSON(p)
			}
			t := newTable(c.stdout)
			t.AppendRows([]table.Row{
				{"plugin", p.Name}, {"version", p.Version}, {"abi", p.ABI}, {"digest", p.Digest}, {"consumers", strings.Join(p.Consumers, ", ")},
				{"instances", p.Instances}, {"memory", bytesIEC(p.MemoryBytes)}, {"restores", p.Restores}, {"re-instantiations", p.Reinstantiations},
			})
			t.Render()
			return nil
		},
	})
	return cmd
}

func (c *cli) pluginsCheckCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "check FILE…",
		Short: "Say whether modules would be admitted, with every reason if not",
		Long: `check reads modules as the host does at its start: it validates and compiles each, asks it for its
manifest and checks what it declares. With a configuration that names the file, its limits and its config
are used.`,
		Args: atLeastOne("a FILE"),
		RunE: func(cmd *cobra.Command, files []string) error {
			cfg, err := c.load()
			if err != nil {
				return err
			}
			return c.checkPlugins(cmd.Context(), cfg, files)
		},
	}
}

// pluginCheck is the verdict on one file.
type pluginCheck struct {
	File     string          `json:"file"`
	OK       bool            `json:"ok"`
	Digest   string          `json:"digest,omitempty"`
	Size     int             `json:"size"`
	Reasons  []string        `json:"reasons,omitempty"`
	Manifest json.RawMessage `json:"manifest,omitempty"`

	module *plugins.Module
}

func (c *cli) checkPlugins(ctx context.Context, cfg *config.Config, files []string) (err error) {
	// No cache: a check leaves nothing behind.
	engine, err := plugins.NewEngine("", hclog.NewNullLogger(), plugins.Compile)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, engine.Close(context.WithoutCancel(ctx))) }()
	bad := 0
	for _, file := range files {
		check, err := checkPlugin(ctx, engine, cfg, file)
		if err != nil {
			return err
		}
		if !check.OK {
			bad++
		}
		if c.json {
			if err := c.printJSON(check); err != nil {
				return err
			}
			continue
		}
		c.printCheck(check)
	}
	if bad > 0 {
		return fmt.Errorf("%s of %d would not be admitted", plural(int64(bad), "module"), len(files))
	}
	return nil
}

func checkPlugin(ctx context.Context, engine *plugins.Engine, cfg *config.Config, file string) (*pluginCheck, error) {
	p := config.DefaultPlugin()
	p.Name = strings.TrimSuffix(filepath.Base(file), ".wasm")
	for _, configured := range cfg.Plugins {
		if config.Abs(cfg.Resolve(configured.Path)) == config.Abs(file) {
			p = configured
		}
	}
	wasm, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	check := &pluginCheck{File: file, Size: len(wasm)}
	settings, err := settingsOf(cfg, &p)
	if err != nil {
		return nil, err
	}
	m, err := engine.Load(ctx, wasm, settings)
	if reject, ok := errors.AsType[*plugins.RejectError](err); ok {
		check.Digest, check.Reasons = reject.Digest, reject.Reasons
		return check, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	check.OK, check.Digest, check.module = true, m.Digest(), m
	check.Manifest, err = json.Marshal(m.Manifest())
	return check, err
}

func (c *cli) printCheck(k *pluginCheck) {
	if !k.OK {
		fmt.Fprintf(c.stdout, "%s: not admitted\n", k.File)
		for _, r := range k.Reasons {
			fmt.Fprintf(c.stdout, "  - %s\n", r)
		}
		return
	}
	m := k.module.Manifest()
	fmt.Fprintf(c.stdout, "%s: ok\n", k.File)
	fmt.Fprintf(c.stdout, "  plugin   %s %s\n  digest   %s\n  size     %s\n", m.Name, m.Version, k.Digest, bytesIEC(uint64(k.Size)))
	for _, cons := range m.Consumers {
		fmt.Fprintf(c.stdout, "  consumer %s/%s\n", cons.Type, cons.Name)
		for _, in := range cons.Inputs {
			fmt.Fprintf(c.stdout, "    reads %s: %s\n", in.Topic, strings.Join(in.Types, ", "))
		}
		for _, t := range cons.Tables {
			var cols []string
			for _, col := range t.Columns {
				cols = append(cols, col.Name+" "+col.Kind)
			}
			fmt.Fprintf(c.stdout, "    table %s (%s)\n", t.Name, strings.Join(cols, ", "))
		}
	}
}

// settingsOf gives a configured plugin's limits the form the engine takes.
func settingsOf(cfg *config.Config, p *config.Plugin) (plugins.Settings, error) {
	s := plugins.DefaultSettings(p.Name)
	// A guest has room for the largest event there may be, with all its names.
	s.FrameMax = max(s.FrameMax, int(cfg.Store.MaxEvent)+64<<10)
	s.MemoryLimit = uint64(p.MemoryLimit)
	s.Timeout = p.Timeout
	if p.Isolate == "lane" {
		s.Isolate = plugins.IsolateLane
	}
	if len(p.Config) > 0 {
		b, err := json.Marshal(p.Config)
		if err != nil {
			return s, fmt.Errorf("plugin %s: config: %w", p.Name, err)
		}
		s.Config = b
	}
	return s, nil
}

// readPlugin reads a configured module's bytes.
func readPlugin(cfg *config.Config, p *config.Plugin) ([]byte, error) {
	wasm, err := os.ReadFile(cfg.Resolve(p.Path))
	if err != nil {
		return nil, fmt.Errorf("plugin %s: %w (path in the configuration)", p.Name, err)
	}
	return wasm, nil
}
