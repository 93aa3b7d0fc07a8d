package readmodel

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

// Names are ASCII, so comparing them without case means the same to every
// engine.

// PrefixMax is the longest prefix: with it a name still fits 63 characters.
const PrefixMax = 15

// identifierMax is the longest identifier of PostgreSQL, the narrowest engine.
const identifierMax = 63

func checkName(name string) string {
	switch {
	case name == "":
		return "a name is needed"
	case len(name) > NameMax:
		return fmt.Sprintf("the name is longer than %d characters", NameMax)
	}
	for i, c := range []byte(name) {
		letter := c|0x20 >= 'a' && c|0x20 <= 'z'
		if !letter && (i == 0 || !isDigit(c) && c != '_') {
			return "a name is made of letters, digits and underscores (A-Z a-z 0-9 _) and begins with a letter"
		}
	}
	if hasPrefixFold(name, "ph_") {
		return "names that begin with ph_ are reserved for the host"
	}
	return ""
}

func checkTableName(name string) string {
	if reason := checkName(name); reason != "" {
		return reason
	}
	if hasPrefixFold(name, "sqlite_") {
		return "names that begin with sqlite_ are reserved by SQLite"
	}
	if i := strings.LastIndex(strings.ToLower(name), "__b"); i >= 0 && len(name) > i+3 {
		if strings.Trim(name[i+3:], "0123456789") == "" {
			return "names that end in __b and a number are reserved for the builds of a table"
		}
	}
	return ""
}

func checkColumnName(name string) string {
	if reason := checkName(name); reason != "" {
		return reason
	}
	if strings.EqualFold(name, KeyColumn) || strings.EqualFold(name, ChildColumn) {
		return "every table has the column \"" + strings.ToLower(name) + "\" of itself: choose another name"
	}
	return ""
}

func hasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}

func kindNames() string {
	var names []string
	for k := Text; k <= JSON; k++ {
		names = append(names, k.String())
	}
	return strings.Join(names, ", ")
}

// CheckPrefix tells whether a prefix for table names is usable.
func CheckPrefix(prefix string) error {
	if len(prefix) > PrefixMax {
		return fmt.Errorf("%q: a table prefix has at most %d characters", cut(prefix), PrefixMax)
	}
	for i, c := range []byte(prefix) {
		letter := c|0x20 >= 'a' && c|0x20 <= 'z'
		if !letter && (i == 0 || !isDigit(c) && c != '_') {
			return fmt.Errorf("%q: a table prefix is made of letters, digits and underscores and begins with a letter", prefix)
		}
	}
	return nil
}

// PublicName is the name of the view by which users read a table.
func PublicName(prefix, name string) string {
	return shorten(strings.ToLower(prefix+name), identifierMax)
}

// PhysicalName is the name of a table of one build. It is never renamed or
// used again, so nobody is left reading the table of another build.
func PhysicalName(prefix, name string, build int64) string {
	suffix := "__b" + strconv.FormatInt(build, 10)
	return shorten(strings.ToLower(prefix+name), identifierMax-len(suffix)) + suffix
}

// shorten cuts a name that is too long and ends it in a hash of the whole.
func shorten(name string, limit int) string {
	if len(name) <= limit {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return name[:limit-9] + "_" + hex.EncodeToString(sum[:4])
}

// IndexName derives the name of an index on columns of a table. A plain
// table_column name would be cut by an engine, and two cut names could meet;
// this one is short and keeps them apart by a hash.
func IndexName(table string, columns ...string) string {
	h := sha256.New()
	h.Write([]byte(table))
	for _, c := range columns {
		h.Write([]byte{0})
		h.Write([]byte(c))
	}
	return table[:min(len(table), 40)] + "_" + hex.EncodeToString(h.Sum(nil)[:4])
}
