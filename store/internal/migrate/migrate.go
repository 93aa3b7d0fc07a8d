// Package migrate brings a database's schema forward: numbered SQL files,
// applied once each, in order, under the database's own lock, with a checksum
// that tells a file changed afterwards. It knows no dialect: a driver lends it
// a [Database].
//
// Promise: concurrent first starts apply every migration exactly once, and a
// database with a newer schema than this program knows is never touched.
package migrate

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"path"
	"sort"
	"strconv"
	"strings"
)

// Migration is one numbered step. SQL still holds the names' placeholders, so
// the checksum is the same whatever the table prefix.
type Migration struct {
	Version  int
	Name     string
	SQL      string
	Checksum string // hex SHA-256 of SQL
}

// Applied is a migration the database has on record.
type Applied struct {
	Version  int
	Name     string
	Checksum string
}

// Database is where migrations are applied.
type Database interface {
	// Begin takes the database's own lock against other migrators and opens
	// what the engine has of a transaction. It waits as long as ctx lets it.
	Begin(ctx context.Context) (Tx, error)
}

// Tx is one locked step. Exactly one of Commit and Rollback ends it.
type Tx interface {
	// Applied returns the recorded migrations by version; none where the
	// record does not exist yet.
	Applied(ctx context.Context) ([]Applied, error)
	// Apply runs the migration and records it.
	Apply(ctx context.Context, m Migration) error
	Commit() error
	Rollback() error
}

// Load reads NNNN_name.sql files, numbered from 1 without holes.
func Load(files fs.FS, dir string) ([]Migration, error) {
	entries, err := fs.ReadDir(files, dir)
	if err != nil {
		return nil, fmt.Errorf("read migrations: %w", err)
	}
	var ms []Migration
	for _, e := range entries {
		number, name, ok := strings.Cut(strings.TrimSuffix(e.Name(), ".sql"), "_")
		version, err := strconv.Atoi(number)
		if !ok || err != nil || !strings.HasSuffix(e.Name(), ".sql") {
			return nil, fmt.Errorf("migration %q: its name is not NNNN_name.sql", e.Name())
		}
		text, err := fs.ReadFile(files, path.Join(dir, e.Name()))
		if err != nil {
			return nil, fmt.Errorf("read migration: %w", err)
		}
		sum := sha256.Sum256(text)
		ms = append(ms, Migration{Version: version, Name: name, SQL: string(text), Checksum: hex.EncodeToString(sum[:])})
	}
	sort.Slice(ms, func(i, j int) bool { return ms[i].Version < ms[j].Version })
	for i, m := range ms {
		if m.Version != i+1 {
			return nil, fmt.Errorf("migration %04d_%s: expected number %04d", m.Version, m.Name, i+1)
		}
	}
	return ms, nil
}

// Run applies what is missing, each migration in a step of its own.
func Run(ctx context.Context, db Database, ms []Migration) error {
	for {
		more, err := step(ctx, db, ms)
		if err != nil || !more {
			return err
		}
	}
}

// step applies at most one migration. What is on record is read under the
// lock: another process may have applied it while we waited.
func step(ctx context.Context, db Database, ms []Migration) (more bool, err error) {
	tx, err := db.Begin(ctx)
	if err != nil {
		return false, err
	}
	defer func() {
		if err != nil || !more {
			_ = tx.Rollback()
		}
	}()
	applied, err := tx.Applied(ctx)
	if err != nil {
		return false, err
	}
	if err := Verify(applied, ms); err != nil {
		return false, err
	}
	if len(applied) == len(ms) {
		return false, nil
	}
	m := ms[len(applied)]
	if err := tx.Apply(ctx, m); err != nil {
		return false, fmt.Errorf("migration %04d_%s: %w", m.Version, m.Name, err)
	}
	if err := tx.Commit(); err != nil {
		return false, fmt.Errorf("migration %04d_%s: %w", m.Version, m.Name, err)
	}
	return true, nil
}

// NewerError is a database that a later version of this program has migrated.
type NewerError struct {
	Known, Found int
}

func (e *NewerError) Error() string {
	return fmt.Sprintf("the database's schema has version %d, this projhost knows %d: start the newer projhost", e.Found, e.Known)
}

// ChecksumError is a migration that is not the one on record.
type ChecksumError struct {
	Version            int
	Name               string
	Recorded, Expected string
}

func (e *ChecksumError) Error() string {
	return fmt.Sprintf("migration %04d_%s was applied with checksum %.12s, this projhost has %.12s: the database was made by another build; start that one, or begin with a new database and import into it",
		e.Version, e.Name, e.Recorded, e.Expected)
}

// Verify compares the record with what this program knows. A record that ends
// early is fine: the rest is to be applied.
func Verify(applied []Applied, ms []Migration) error {
	for i, a := range applied {
		if a.Version > len(ms) {
			return &NewerError{Known: len(ms), Found: applied[len(applied)-1].Version}
		}
		if a.Version != i+1 {
			return fmt.Errorf("schema_migrations: version %d is not on record, but %d is: restore the table from a backup", i+1, a.Version)
		}
		if m := ms[i]; a.Checksum != m.Checksum {
			return &ChecksumError{Version: m.Version, Name: m.Name, Recorded: a.Checksum, Expected: m.Checksum}
		}
	}
	return nil
}
