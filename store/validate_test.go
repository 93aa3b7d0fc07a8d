package store_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/store"
)

func TestCheckIdentifier(t *testing.T) {
	for name, want := range map[string]string{
		"a":                                 "",
		" a":                                "",
		"ä b":                               "",
		"😀":                                 "",
		strings.Repeat("😀", 255):            "",
		strings.Repeat("a", 255):            "",
		"":                                  "empty",
		"a ":                                "space",
		" ":                                 "space",
		"a\x00b":                            "U+0000",
		"\xff":                              "UTF-8",
		"\xed\xa0\x80":                      "UTF-8",
		strings.Repeat("a", 256):            "256 characters",
		strings.Repeat("😀", 256):            "256 characters",
		strings.Repeat("a", 255) + "\u0301": "256 characters",
	} {
		if got := store.CheckIdentifier(name); want == "" {
			require.Empty(t, got, "%q", name)
		} else {
			require.Contains(t, got, want, "%q", name)
		}
	}
}

func FuzzCheckIdentifier(f *testing.F) {
	for _, s := range []string{"a", "a ", "\x00", "\xff", strings.Repeat("ä", 256)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		ok := store.CheckIdentifier(s) == ""
		n := utf8.RuneCountInString(s)
		want := utf8.ValidString(s) && n >= 1 && n <= 255 && !strings.ContainsRune(s, 0) && !strings.HasSuffix(s, " ")
		require.Equal(t, want, ok, "%q", s)
	})
}

// A repeat is compared in what the caller gave, and the first member that
// differs is named.
func TestDiffers(t *testing.T) {
	stored := store.Event{Type: "Opened", Revision: 1, Codec: "json", CodecVersion: 1, Data: []byte(`1`), Metadata: []byte(`2`), OccurredUS: 3}
	same := store.NewEvent{Type: "Opened", Data: []byte(`1`)}
	require.Empty(t, same.Differs(&stored))
	same.Revision, same.HasRevision, same.Metadata, same.OccurredUS, same.HasOccurred = 1, true, []byte(`2`), 3, true
	same.Codec, same.CodecVersion = "json", 1
	require.Empty(t, same.Differs(&stored))
	stored.Metadata = nil
	require.Equal(t, "metadata", same.Differs(&stored))
}

func TestErrorsReadWell(t *testing.T) {
	bad := store.Commit{Streams: []store.StreamAppend{{AggregateType: "account", AggregateID: "A-1", ExpectedVersion: store.AnyVersion,
		Events: []store.NewEvent{{Type: "Opened", Data: []byte(`{"a":1}`)}, {Type: "Closed", Data: []byte(`{`)}}}}}
	err := bad.Validate(100)
	require.EqualError(t, err, "event of type Closed: data: malformed JSON at byte 1: the end where the name of a member is expected")
	deep := strings.Repeat("[", 1001)
	require.Contains(t, store.CheckCodec("json", 1, []byte(deep)), "data: malformed JSON at byte 1000: ")
	bad.Streams[0].Events[1].Data = []byte(`"` + strings.Repeat("x", 100) + `"`)
	require.EqualError(t, bad.Validate(100), "event has 102 bytes of data and metadata, at most 100 are allowed ([store] max_event)")
}
