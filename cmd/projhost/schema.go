package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/projhost/projhost/internal/config"
	"github.com/projhost/projhost/store/drivers"
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
			if !slices.Contains(drivers.Schemas(), driver) {
				return usage("--driver is one of %s, not %q", strings.Join(drivers.Schemas(), ", "), driver)
			}
			sql, err := drivers.SchemaSQL(driver, cfg.Store.TablePrefix, cfg.Partitions.Count)
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
	printCmd.Flags().StringVar(&driver, "driver", "", "`name` of the database: "+strings.Join(drivers.Schemas(), ", ")+" (default: store.driver of the configuration)")
	completeNames(printCmd, "driver", drivers.Schemas())
	cmd.AddCommand(printCmd, &cobra.Command{
		Use:   "check",
		Short: "Compare the configured database with the schema this version expects, and read models with their declarations",
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
			_, err = fmt.Fprintf(c.stdout, "%s is in shape\n", cfg.Database())
			return err
		},
	})
	return cmd
}

// checkSchema opens the database without making anything, and closes it.
func (c *cli) checkSchema(ctx context.Context, cfg *config.Config) (err error) {
	st, err := openAsItIs(ctx, cfg)
	if _, none := errors.AsType[*noFileError](err); none {
		return fmt.Errorf("there is no database at %s: projhost run makes it, or projhost schema print its script", cfg.Database())
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	if err := st.Check(ctx); err != nil {
		return err
	}
	return st.CheckTables(ctx)
}
