package sqlserver

import (
	"database/sql"
	"fmt"
	"math"
	"strconv"
	"strings"

	mssql "github.com/microsoft/go-mssqldb"
)

// collation is that of every text column: exact, in the order of code points,
// and in UTF-8.
const collation = "Latin1_General_100_BIN2_UTF8"

// shortText is the most bytes that a varchar with a length holds.
const shortText = 8000

// bind fits a statement with the parameters @p1, @p2 … to its arguments, in
// three ways that the plain driver does not:
//
//   - NULL is written into the text. A nil parameter would be declared as
//     nvarchar(1), which no varbinary column takes.
//   - A text becomes varchar in our collation at its place. It travels as
//     nvarchar, to which the server would convert the column that it is compared
//     with, row by row, past its index and with a lock on each.
//   - A text is always declared nvarchar(max): declared with its length it
//     would make a plan of its own for every length.
//
// Parameters keep their names, so that those left out leave no gap.
func bind(text string, args []any) (string, []any, error) { return bindAfter(0, text, args) }

// bindAfter is bind for a statement behind others of a batch, which have taken
// the first parameters.
func bindAfter(taken int, text string, args []any) (string, []any, error) {
	if len(args) == 0 {
		return text, nil, nil
	}
	var b strings.Builder
	named := make([]any, 0, len(args))
	used := make([]bool, len(args))
	for {
		i := strings.Index(text, "@p")
		if i < 0 {
			break
		}
		end := i + 2
		for end < len(text) && text[end] >= '0' && text[end] <= '9' {
			end++
		}
		n, err := strconv.Atoi(text[i+2 : end])
		if err != nil || n < 1 || n > len(args) {
			return "", nil, fmt.Errorf("statement with %d arguments uses the parameter %q", len(args), text[i:end])
		}
		name := "p" + strconv.Itoa(taken+n)
		mark, value, err := parameter("@"+name, args[n-1])
		if err != nil {
			return "", nil, fmt.Errorf("argument %d: %w", n, err)
		}
		if strings.HasPrefix(text[end:], " COLLATE ") {
			if value == nil {
				mark = "CAST(NULL AS varchar(1))"
			} else {
				mark = "@" + name // it is converted already
			}
		}
		b.WriteString(text[:i] + mark)
		text = text[end:]
		if value != nil && !used[n-1] {
			used[n-1] = true
			named = append(named, sql.Named(name, value))
		}
	}
	b.WriteString(text)
	return b.String(), named, nil
}

// parameter is what stands for an argument in the text, and what is sent for
// it: nil for NULL.
func parameter(mark string, arg any) (string, any, error) {
	switch v := arg.(type) {
	case nil:
		return "NULL", nil, nil
	case string:
		return asText(mark, v), mssql.NVarCharMax(v), nil
	case []byte:
		if v == nil {
			return "NULL", nil, nil
		}
		return mark, v, nil
	case int64, float64, bool:
		return mark, v, nil
	case int:
		return mark, int64(v), nil
	case int32:
		return mark, int64(v), nil
	case sql.NullString:
		return optional(mark, v.Valid, v.String)
	case sql.NullInt64:
		return optional(mark, v.Valid, v.Int64)
	case sql.NullBool:
		return optional(mark, v.Valid, v.Bool)
	case sql.NullFloat64:
		return optional(mark, v.Valid, v.Float64)
	}
	return "", nil, fmt.Errorf("a %T has no type here", arg)
}

func optional(mark string, valid bool, v any) (string, any, error) {
	if !valid {
		return "NULL", nil, nil
	}
	return parameter(mark, v)
}

func asText(mark, v string) string {
	size := "max"
	if len(v) <= shortText {
		size = strconv.Itoa(shortText)
	}
	return "CAST(" + mark + " COLLATE " + collation + " AS varchar(" + size + "))"
}

// whole splits a number into an integer and a power of two whose product it is.
// In decimal digits it would depend on how the server rounds.
func whole(f float64) (mantissa int64, exponent int) {
	fraction, exponent := math.Frexp(f)
	return int64(fraction * (1 << 53)), exponent - 53
}
