package sqlite

import (
	"fmt"
	"regexp"
	"strings"
)

// naming puts the table prefix into SQL.
type naming struct {
	prefix string
	table  *strings.Replacer
}

var prefixForm = regexp.MustCompile(`^([A-Za-z][A-Za-z0-9_]{0,31})?$`)

func newNaming(prefix string) (*naming, error) {
	if !prefixForm.MatchString(prefix) {
		return nil, fmt.Errorf("table prefix %q: want at most 32 letters, digits and underscores, a letter first ([store] table_prefix)", prefix)
	}
	return &naming{prefix: prefix, table: strings.NewReplacer("{{", `"`+prefix, "}}", `"`)}, nil
}

// sql replaces {{name}} by the quoted name of one of the host's tables.
func (n *naming) sql(text string) string { return n.table.Replace(text) }

// quote makes an identifier of any text.
func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }
