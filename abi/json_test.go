package abi

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestNestingIsBoundedAsInEncodingJSON: bytes from outside must not be able to
// use up a stack, and both scanners must agree on what is JSON.
func TestNestingIsBoundedAsInEncodingJSON(t *testing.T) {
	for _, depth := range []int{1, jsonDepth - 1, jsonDepth, jsonDepth + 1, 200 * jsonDepth} {
		for _, doc := range []string{
			strings.Repeat("[", depth) + strings.Repeat("]", depth),
			strings.Repeat(`{"a":`, depth) + "1" + strings.Repeat("}", depth),
			strings.Repeat("[", depth),
		} {
			s := scanner{b: []byte(doc)}
			require.Equal(t, json.Valid([]byte(doc)), s.document(), "%d deep: %.10s", depth, doc)
			if !json.Valid([]byte(doc)) {
				require.Equal(t, PointerUnresolved, Pointer([]byte(doc), "/a/a/a").State, "%d deep: %.10s", depth, doc)
			}
		}
	}
}

func TestStringsEndWhereTheyShould(t *testing.T) {
	for _, special := range []string{`"`, `\"`, `\\`, "\x1f", "\n", "\x00", "ä", "\x7f", "\xff", `\u00e4`, `\u00e`, `\`} {
		for before := range 20 {
			for after := range 10 {
				doc := []byte(`"` + strings.Repeat("x", before) + special + strings.Repeat("\x80", after) + `"`)
				s := scanner{b: doc}
				require.Equal(t, json.Valid(doc), s.document(), "%q", doc)
			}
		}
	}
}

func TestQuotedTextComesBack(t *testing.T) {
	for _, text := range []string{"", "plain", "\"\\/\b\f\n\r\t\x00\x1f", "ä\U0001F600\u2028", "</script>"} {
		quoted := appendQuoted(nil, text)
		var back string
		require.NoError(t, json.Unmarshal(quoted, &back))
		require.Equal(t, text, back)
		require.Equal(t, text, string(unquote(nil, quoted[1:len(quoted)-1])))
	}
}
