package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"github.com/projhost/projhost/internal/config"
)

// Exit statuses.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2 // wrong usage or configuration
)

// cli is one invocation of the command.
type cli struct {
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer

	configPath string
	url        string
	token      string
	json       bool
	started    bool // a command began, so what fails is no longer the usage
}

// usageError is a mistake in what was typed.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usage(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// errInterrupted is what a command that was told to end fails with.
var errInterrupted = errors.New("interrupted")

// run executes one command line and returns its exit status. The first
// interrupt asks the command to end, the second ends the process.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)

	c := &cli{stdin: stdin, stdout: stdout, stderr: stderr}
	root := c.root()
	root.SetArgs(joinStale(args))
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	for _, line := range strings.Split(strings.TrimRight(err.Error(), "\n"), "\n") {
		fmt.Fprintf(stderr, "projhost: %s\n", line)
	}
	_, isUsage := errors.AsType[*usageError](err)
	_, isConfig := errors.AsType[*config.Error](err)
	if isUsage || isConfig || !c.started {
		return exitUsage
	}
	return exitFailed
}

func (c *cli) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "projhost",
		Short: "A host for WebAssembly projections: events in, exactly-once read models out",
		Long: `projhost applies the events of its store to WebAssembly plugins and keeps the read
models they build, each event exactly once, whatever crashes.

Start with: projhost demo`,
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRun: func(*cobra.Command, []string) {
			c.started = true
		},
		// Without arguments the help; with some that are no command, an error.
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage("unknown command %q; see: projhost --help", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usage("%v; see: %s --help", err, cmd.CommandPath())
	})
	f := root.PersistentFlags()
	f.StringVar(&c.configPath, "config", "", "configuration `file` (PROJHOST_CONFIG; default config.toml)")
	f.StringVar(&c.url, "url", "", "`address` of a running host (PROJHOST_URL; default: http.listen of the configuration)")
	f.StringVar(&c.token, "token", "", "bearer `token` for the host (PROJHOST_TOKEN)")
	f.BoolVar(&c.json, "json", false, "write JSON and nothing else to standard output")
	root.AddCommand(
		c.demoCommand(), c.runCommand(),
		c.importCommand(), c.exportCommand(), c.appendCommand(),
		c.queryCommand(), c.statusCommand(), c.consumersCommand(), c.undeliveredCommand(), c.topicsCommand(),
		c.pluginsCommand(), c.schemaCommand(), c.doctorCommand(), c.benchCommand(), c.versionCommand(),
	)
	for _, cmd := range root.Commands() {
		groups(cmd)
	}
	return root
}

// groups makes a command that only has sub-commands say so when it is given
// none or an unknown one.
func groups(cmd *cobra.Command) {
	if !cmd.HasSubCommands() || cmd.Runnable() {
		return
	}
	var names []string
	for _, sub := range cmd.Commands() {
		names = append(names, sub.Name())
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return usage("unknown command %q; %s has %s", args[0], cmd.CommandPath(), strings.Join(names, ", "))
		}
		return usage("%s needs one of %s", cmd.CommandPath(), strings.Join(names, ", "))
	}
	cmd.RunE = func(*cobra.Command, []string) error { return nil }
}

// load reads the configuration: --config, else PROJHOST_CONFIG, else
// config.toml if there is one.
func (c *cli) load() (*config.Config, error) {
	path := c.configPath
	if path == "" {
		path = os.Getenv("PROJHOST_CONFIG")
	}
	if path == "" {
		return config.Load("config.toml", true)
	}
	return config.Load(path, false)
}

// logger is the host's log, on standard error.
func (c *cli) logger(l config.Log) hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{
		Name:       "projhost",
		Level:      hclog.LevelFromString(l.Level),
		Output:     c.stderr,
		JSONFormat: l.Format == "json" || l.Format == "auto" && !isTerminal(c.stderr),
		TimeFn:     utcNow,
		TimeFormat: "2006-01-02T15:04:05.000Z",
	})
}

// completeNames lets the shell complete a flag that is one of some names.
func completeNames(cmd *cobra.Command, flag string, names []string) {
	err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(names, cobra.ShellCompDirectiveNoFileComp))
	if err != nil { // no such flag
		panic(err)
	}
}

// exactly and atLeast check the number of arguments and name them.
func exactly(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < len(names) {
			return usage("%s needs %s; see: %s --help", cmd.CommandPath(), strings.Join(names[len(args):], " "), cmd.CommandPath())
		}
		if len(args) > len(names) {
			return usage("%s takes no %q; see: %s --help", cmd.CommandPath(), args[len(names)], cmd.CommandPath())
		}
		return nil
	}
}

func atMost(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > len(names) {
			return exactly(names...)(cmd, args)
		}
		return nil
	}
}

func atLeastOne(name string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return usage("%s needs %s; see: %s --help", cmd.CommandPath(), name, cmd.CommandPath())
		}
		return nil
	}
}
