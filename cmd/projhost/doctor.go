package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/projhost/projhost/host/api"
	"github.com/projhost/projhost/internal/config"
	"github.com/projhost/projhost/plugins"
	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/sqlite"
)

// Verdicts of the doctor.
const (
	healthy = "ok"
	warning = "warn"
	failing = "fail"
)

// finding is one line of the doctor's.
type finding struct {
	Check  string `json:"check"`
	Status string `json:"status"`
	Detail string `json:"detail"`
	Remedy string `json:"remedy,omitempty"`
}

func (c *cli) doctorCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Check configuration, data folder, database, consumers, clock and plugins, and say what to mend",
		Args:  exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			findings := c.examine(cmd.Context())
			failed := int64(0)
			for _, f := range findings {
				if f.Status == failing {
					failed++
				}
			}
			if c.json {
				if err := c.printJSON(map[string]any{"ok": failed == 0, "checks": findings}); err != nil {
					return err
				}
			} else {
				t := newTable(c.stdout)
				for _, f := range findings {
					t.AppendRow(table.Row{f.Status, f.Check, f.Detail})
					if f.Remedy != "" {
						t.AppendRow(table.Row{"", "", "→ " + f.Remedy})
					}
				}
				t.Render()
			}
			if failed > 0 {
				return fmt.Errorf("doctor: %s to mend", plural(failed, "thing"))
			}
			return nil
		},
	}
}

func (c *cli) examine(ctx context.Context) (out []finding) {
	add := func(check, status, detail, remedy string) {
		out = append(out, finding{check, status, detail, remedy})
	}
	cfg, err := c.load()
	if err != nil {
		for _, line := range strings.Split(err.Error(), "\n") {
			add("config", failing, line, "correct the file; config.toml of the repository explains every key")
		}
		return out
	}
	file := cfg.File
	if file == "" {
		file = "defaults (there is no config.toml here)"
	}
	add("config", healthy, file, "")
	for _, n := range cfg.Notices() {
		add("config", warning, n, "")
	}
	folder := examineFolder(cfg)
	out = append(out, folder)
	if folder.Status == failing {
		return append(out, examineClock(cfg), c.examinePlugins(ctx, cfg))
	}
	out = append(out, c.examineDatabase(ctx, cfg)...)
	return append(out, examineClock(cfg), c.examinePlugins(ctx, cfg))
}

func examineFolder(cfg *config.Config) finding {
	dir := config.Abs(cfg.DataPath())
	fi, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return finding{"data folder", warning, dir + " does not exist yet", "the first start makes it"}
	case err != nil:
		return finding{"data folder", failing, err.Error(), "let this user read and write the folder, or set data_dir"}
	case !fi.IsDir():
		return finding{"data folder", failing, dir + " is a file", "move it away, or set data_dir"}
	}
	probe, err := os.CreateTemp(dir, ".doctor-*")
	if err != nil {
		return finding{"data folder", failing, err.Error(), "let this user write to the folder, or set data_dir"}
	}
	_ = probe.Close()
	_ = os.Remove(probe.Name())
	free, known := diskFree(dir)
	detail := dir
	if known {
		detail += fmt.Sprintf(", %s free", bytesIEC(free))
		if free < 256<<20 {
			return finding{"data folder", failing, detail, "free some space: with less than 256 MiB appends may fail at any time"}
		}
		if free < 2<<30 {
			return finding{"data folder", warning, detail, "free some space before it runs out"}
		}
	}
	return finding{"data folder", healthy, detail, ""}
}

// examineDatabase asks the running host, and where there is none opens the
// database itself, without making or changing anything.
func (c *cli) examineDatabase(ctx context.Context, cfg *config.Config) (out []finding) {
	cl, err := c.remote(ctx)
	if err != nil {
		return append(out, finding{"host", failing, err.Error(), "start the host, or mend --url, PROJHOST_URL or http of the configuration"})
	}
	if cl != nil {
		var ready map[string]any
		out = append(out, finding{"host", healthy, "a host answers at " + cl.base, ""})
		if err := cl.get(ctx, "/readyz", nil, &ready); err != nil {
			return append(out, finding{"database", failing, err.Error(), "see projhost status, and the host's log"})
		}
		out = append(out, finding{"database", healthy, "the host is ready, its store answers", ""})
		var topics api.Page[api.Topic]
		if err := cl.get(ctx, "/v1/topics", nil, &topics); err == nil { // who may not see them is told at the consumers
			out = append(out, examineMarks(topics.Items)...)
		}
		return append(out, c.examineConsumers(ctx, cl))
	}
	out = append(out, examineAddress(cfg)...)
	where := cfg.Database()
	st, err := openAsItIs(ctx, cfg)
	_, noFile := errors.AsType[*noFileError](err)
	_, locked := errors.AsType[*sqlite.LockedError](err)
	shape, differs := errors.AsType[*store.SchemaError](err)
	never := cfg.Store.InitializeSchema == "never"
	switch {
	case noFile && never:
		return append(out, finding{"database", failing, "there is none at " + where, `make it with the script of projhost schema print, or set [store] initialize_schema = "always"`})
	case noFile:
		return append(out, finding{"database", warning, "there is none at " + where + " yet", "the first start makes it"})
	case missing(err) && !never:
		return append(out, finding{"database", healthy, where, ""}, finding{"schema", warning, err.Error(), "the first start makes the tables, where there are none"})
	case differs:
		return append(out, finding{"database", healthy, where, ""}, finding{"schema", failing, err.Error(), "projhost schema print --driver " + shape.Driver + " says how the tables should be"})
	case locked:
		return append(out, finding{"database", failing, err.Error(), "stop that process, or check the address it listens at"})
	case err != nil && cfg.Store.Driver == "sqlite":
		return append(out, finding{"database", failing, err.Error(), "see the message; projhost schema check compares the tables"})
	case err != nil:
		return append(out, finding{"database", failing, err.Error(), "see the message, and docs/databases.md for rights and settings; [store] dsn is " + config.RedactDSN(cfg.Store.DSN)})
	}
	defer func() {
		if err := st.Close(); err != nil {
			out = append(out, finding{"database", failing, err.Error(), ""})
		}
	}()
	info, err := st.Info(ctx)
	if err != nil {
		return append(out, finding{"database", failing, err.Error(), ""})
	}
	out = append(out, finding{"database", healthy, fmt.Sprintf("%s (%s %s, positions from a %s)", where, info.Driver, info.ServerVersion, info.PositionMode), ""})
	if s, ok := st.(interface {
		Warnings(context.Context) ([]string, error)
	}); ok {
		list, err := s.Warnings(ctx)
		if err != nil {
			return append(out, finding{"settings", failing, err.Error(), ""})
		}
		for _, w := range list {
			out = append(out, finding{"settings", warning, w, ""})
		}
	}
	if err := st.Check(ctx); err != nil {
		return append(out, finding{"schema", failing, err.Error(), "see the message"})
	}
	out = append(out, finding{"schema", healthy, fmt.Sprintf("version %d, %s", info.SchemaVersion, plural(int64(info.Partitions), "partition")), ""})
	if err := st.CheckTables(ctx); err != nil {
		for _, line := range strings.Split(err.Error(), "\n") {
			out = append(out, finding{"read models", failing, line, "see the message"})
		}
	}
	topics, err := settledTopics(ctx, st)
	if err != nil {
		return append(out, finding{"topics", failing, err.Error(), ""})
	}
	return append(out, examineMarks(topics)...)
}

// holderNamed is how long a store that was just opened may take to name who
// holds a mark: it first has to have been held for a while.
const holderNamed = 3 * time.Second

// settledTopics lists the topics when marks that lag have caught up or the store
// knows why they do not.
func settledTopics(ctx context.Context, st store.Store) ([]api.Topic, error) {
	for until := time.Now().Add(holderNamed); ; {
		list, err := st.ListTopics(ctx)
		if err != nil {
			return nil, err
		}
		topics := make([]api.Topic, len(list))
		open := false
		for i := range list {
			topics[i] = api.TopicOf(list[i])
			open = open || topics[i].Lag > 0 && topics[i].Holder == nil
		}
		if !open || time.Now().After(until) {
			return topics, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(readyPoll):
		}
	}
}

// examineMarks finds transactions that keep messages from being read. Any other
// cause makes the check of the store fail.
func examineMarks(topics []api.Topic) (out []finding) {
	for i := range topics {
		if topics[i].Holder != nil {
			out = append(out, finding{"topics", warning, markText(&topics[i]), "end that transaction: docs/databases.md says how"})
		}
	}
	return out
}

// examineAddress finds a port that something else has; none answers there.
func examineAddress(cfg *config.Config) []finding {
	l, err := net.Listen("tcp", cfg.HTTP.Listen)
	if err == nil {
		_ = l.Close()
	}
	if !errors.Is(err, syscall.EADDRINUSE) {
		return nil
	}
	return []finding{{"address", failing, cfg.HTTP.Listen + " is in use by what is no projhost", "stop that, or set http.listen to another port"}}
}

// examineConsumers finds those of the running host that do not run.
func (c *cli) examineConsumers(ctx context.Context, cl *client) finding {
	var page api.Page[api.Consumer]
	if err := cl.get(ctx, "/v1/consumers", nil, &page); err != nil {
		if e, ok := errors.AsType[*answerError](err); ok && (e.Status == http.StatusUnauthorized || e.Status == http.StatusForbidden) {
			return finding{"consumers", warning, "not looked at: " + e.Message, ""}
		}
		return finding{"consumers", failing, err.Error(), "see the host's log"}
	}
	var names, troubles []string
	for i := range page.Items {
		switch k := &page.Items[i]; {
		case k.Halt != nil:
			troubles = append(troubles, fmt.Sprintf("%s is halted: %s", k.ID(), tableCell(k.Halt.Message)))
		case k.Reason != "":
			troubles = append(troubles, fmt.Sprintf("%s is %s: %s", k.ID(), k.State, tableCell(k.Reason)))
		default:
			names = append(names, fmt.Sprintf("%s %s", k.ID(), k.State))
		}
	}
	switch {
	case len(troubles) > 0:
		return finding{"consumers", failing, strings.Join(troubles, " | "), "projhost status says why and where"}
	case len(names) == 0:
		return finding{"consumers", healthy, "none", ""}
	}
	return finding{"consumers", healthy, strings.Join(names, ", "), ""}
}

// examineClock finds a clock that went back: the embedded database has no other.
func examineClock(cfg *config.Config) finding {
	now := time.Now()
	detail := now.UTC().Format(time.RFC3339) + " by this machine"
	if cfg.Store.Driver != "sqlite" {
		return finding{"clock", healthy, detail + "; the database uses its own", ""}
	}
	detail += ", whose clock the database uses"
	for _, suffix := range []string{"", "-wal"} {
		if fi, err := os.Stat(cfg.SQLitePath() + suffix); err == nil && fi.ModTime().After(now.Add(time.Minute)) {
			return finding{"clock", failing, fmt.Sprintf("%s, but %s was written at %s", detail, filepath.Base(cfg.SQLitePath())+suffix, fi.ModTime().UTC().Format(time.RFC3339)),
				"set the clock right: recorded times would go back"}
		}
	}
	if now.Year() < 2025 {
		return finding{"clock", failing, detail, "set the clock right"}
	}
	return finding{"clock", healthy, detail, ""}
}

func (c *cli) examinePlugins(ctx context.Context, cfg *config.Config) finding {
	if len(cfg.Plugins) == 0 {
		return finding{"plugins", warning, "none are configured", "add a [[plugin]] table"}
	}
	engine, err := plugins.NewEngine("", hclog.NewNullLogger(), plugins.Compile)
	if err != nil {
		return finding{"plugins", failing, err.Error(), ""}
	}
	defer func() { _ = engine.Close(context.WithoutCancel(ctx)) }()
	var names, problems []string
	for i := range cfg.Plugins {
		p := &cfg.Plugins[i]
		check, err := checkPlugin(ctx, engine, cfg, cfg.Resolve(p.Path))
		switch {
		case err != nil:
			problems = append(problems, fmt.Sprintf("%s: %v", p.Name, err))
		case !check.OK:
			problems = append(problems, fmt.Sprintf("%s: %s", p.Name, strings.Join(check.Reasons, "; ")))
		default:
			names = append(names, p.Name+" "+shortDigest(check.Digest))
		}
	}
	if len(problems) > 0 {
		return finding{"plugins", failing, strings.Join(problems, " | "), "projhost plugins check FILE lists every reason"}
	}
	return finding{"plugins", healthy, strings.Join(names, ", "), ""}
}
