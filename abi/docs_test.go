package abi

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	goldenBlock = regexp.MustCompile("(?s)```golden (\\S+) \"([^\"]+)\" (\\S+)\n(.*?)```")
	// hexColumn is the bytes a line begins with; what follows three spaces is
	// a comment.
	hexColumn = regexp.MustCompile(`^(?:[0-9a-f]{2} {0,2})+`)
)

// TestDocsShowGoldenBytes holds the worked examples of docs/abi.md to the
// vectors they name.
func TestDocsShowGoldenBytes(t *testing.T) {
	doc, err := os.ReadFile("../docs/abi.md")
	require.NoError(t, err)
	blocks := goldenBlock.FindAllStringSubmatch(string(doc), -1)
	require.Len(t, blocks, strings.Count(string(doc), "```golden"))
	require.GreaterOrEqual(t, len(blocks), 4)
	for _, b := range blocks {
		file, name, member := b[1], b[2], b[3]
		var shown string
		for line := range strings.Lines(b[4]) {
			column, _, _ := strings.Cut(line, "   ")
			column = strings.TrimSpace(column)
			require.Equal(t, column, hexColumn.FindString(column), "%s: %s", name, line)
			shown += strings.ReplaceAll(column, " ", "")
		}
		require.Equal(t, vectorMember(t, file, name, member), shown, "%s: %s", file, name)
	}
}

func vectorMember(t *testing.T, file, name, member string) (value string) {
	b, err := os.ReadFile(filepath.Join("testdata", file))
	require.NoError(t, err)
	var vectors []map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(b, &vectors))
	for _, v := range vectors {
		var has string
		require.NoError(t, json.Unmarshal(v["name"], &has))
		if has == name {
			require.NoError(t, json.Unmarshal(v[member], &value))
			return value
		}
	}
	t.Fatalf("%s has no vector %q", file, name)
	return ""
}

// TestDocsShowTheManifest holds the example of docs/abi.md to the parser.
func TestDocsShowTheManifest(t *testing.T) {
	doc, err := os.ReadFile("../docs/abi.md")
	require.NoError(t, err)
	require.Contains(t, string(doc), "```json\n"+loansManifest+"\n```")
}

// TestDocsNameEverythingOfTheWire looks for the names and numbers of the
// package in the page.
func TestDocsNameEverythingOfTheWire(t *testing.T) {
	b, err := os.ReadFile("../docs/abi.md")
	require.NoError(t, err)
	doc := string(b)
	for _, name := range []string{
		ImportModule, ExportMemory, ExportInitialize, ExportMarker, ExportAlloc, ExportDescribe, ExportInit, ExportKeys,
		ExportApply, ImportDone, ImportKeys, ImportGet, ImportGetMany, ImportList, ImportLog, ImportFail, ImportNow,
		ImportRandom, Projection, Saga, Handler, Spread, SingleOwner, ColumnText, ColumnInt, ColumnDecimal, ColumnFloat,
		ColumnBool, ColumnDate, ColumnTime, ColumnTimestamp, ColumnUUID, ColumnBytes, ColumnJSON,
	} {
		require.Contains(t, doc, "`"+name+"`")
	}
	for code, name := range opNames {
		require.Regexp(t, `(?m)^ {0,2}`+strconv.Itoa(int(code))+` `+name+`\b`, doc)
	}
	for tag, name := range tagNames {
		require.Regexp(t, ` `+strconv.Itoa(tag)+` `+name+`\b`, doc)
	}
	for _, s := range []Status{
		StatusOK, StatusIgnored, StatusReject, StatusFatal, StatusRetry, CodeTrap, CodeFuel, CodeMemory, CodeMalformed,
		CodeOrder, CodeDeadline, CodeDatabase, CodeData,
	} {
		who, last := "host", "no"
		if s < CodeTrap {
			who = "guest"
		}
		if s.Deterministic() {
			last = "yes"
		}
		if !s.Failed() {
			last = ""
		}
		require.Regexp(t, `(?m)^\| `+strconv.Itoa(int(s))+` \| `+who+` \| .* \|\s*`+last+`\s*\|$`, doc)
	}
}
