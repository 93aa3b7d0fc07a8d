package sqlite

import (
	"strings"

	"github.com/projhost/projhost/store/internal/rules"
)

// naming puts the table prefix into SQL.
type naming struct {
	prefix string
	table  *strings.Replacer
}

func newNaming(prefix string) (*naming, error) {
	if err := rules.CheckPrefix(prefix); err != nil {
		return nil, err
	}
	return &naming{prefix: prefix, table: strings.NewReplacer("{{", `"`+prefix, "}}", `"`)}, nil
}

// sql replaces {{name}} by the quoted name of one of the host's tables.
func (n *naming) sql(text string) string { return n.table.Replace(text) }

// quote makes an identifier of any text.
func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }
