// Package rules holds the decisions of package store that no database takes
// part in, so that every driver decides alike.
package rules

import (
	"fmt"
	"regexp"
)

var prefixForm = regexp.MustCompile(`^([A-Za-z][A-Za-z0-9_]{0,31})?$`)

// CheckPrefix refuses a prefix of table names that is not safe in SQL.
func CheckPrefix(prefix string) error {
	if !prefixForm.MatchString(prefix) {
		return fmt.Errorf("table prefix %q: want at most 32 letters, digits and underscores, a letter first ([store] table_prefix)", prefix)
	}
	return nil
}

// Partitions of a database: what a new one gets, and the most there can be (16
// bits on every engine).
const (
	PartitionsDefault = 256
	PartitionsMax     = 32767
)
