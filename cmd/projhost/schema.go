package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/projhost/projhost/internal/config"
	"github.com/projhost/projhost/store/sqlite"
)

func (c *cli) schemaCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "schema", Short: "Print the host's tables as SQL, or compare a database with them"}
	var driver string
	printCmd := &cobra.Command{
		Use:   "print",
		Short: "Print the DDL of the host's tables, for Flyway, Liquibase or a DBA",
		Args:  exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := c.load()
			if err != nil {
				return err
			}
			if driver == "" {
				driver = cfg.Store.Driver
			}
			if !slices.Contains(config.Drivers, driver) {
				return usage("--driver %q is not built into this version; it has %s", driver, strings.Join(config.Drivers, ", "))
			}
			sql, err := sqlite.SchemaSQL(cfg.Store.TablePrefix, cfg.Partitions.Count)
			if err != nil {
				return fmt.Errorf("schema: %w", err)
			}
			if c.json {
				return c.printJSON(map[string]string{"driver": driver, "sql": sql})
			}
			_, err = fmt.Fprint(c.stdout, sql)
			return err
		},
	}
	printCmd.Flags().StringVar(&driver, "driver", "", "database `driver` (default: store.driver of the configuration)")
	cmd.AddCommand(printCmd, &cobra.Command{
		Use:   "check",
		Short: "Compare the configured database with the schema this version expects",
		Args:  exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := c.load()
			if err != nil {
				return err
			}
			if err := c.checkSchema(cmd.Context(), cfg); err != nil {
				return err
			}
			if c.json {
				return c.printJSON(map[string]bool{"ok": true})
			}
			_, err = fmt.Fprintf(c.stdout, "%s is in shape\n", cfg.SQLitePath())
			return err
		},
	})
	return cmd
}

// checkSchema opens the database without making anything, and closes it.
func (c *cli) checkSchema(ctx context.Context, cfg *config.Config) (err error) {
	if _, err := os.Stat(cfg.SQLitePath()); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("there is no database at %s: projhost run makes it, or projhost schema print its script", cfg.SQLitePath())
	}
	opt := sqliteOptions(cfg)
	opt.NeverInitialize = true
	st, err := sqlite.Open(ctx, opt)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	return st.Check(ctx)
}
