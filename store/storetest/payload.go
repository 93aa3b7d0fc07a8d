package storetest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/store"
)

var payloadCases = []testCase{
	{"JSONComesBackByteForByte", payloadJSON},
	{"OpaqueCodecsComeBackByteForByte", payloadOpaque},
	{"AbsentMetadataIsNotNull", payloadMetadata},
	{"CodecAndVersionAreKept", payloadCodec},
	{"LargeOnes", payloadLarge},
}

// payloads that some engine's JSON type, collation or text column would bring
// back in another form.
var payloads = map[string]string{
	"white space":        " {\n\t\"a\" :  [ 1 ,2 ]\r\n} ",
	"order of members":   `{"b":1,"a":2,"aa":3}`,
	"duplicate members":  `{"a":1,"a":2,"a":1}`,
	"big integer":        `{"n":123456789012345678901234567890}`,
	"fine decimal":       `{"n":0.1000000000000000055511151231257827}`,
	"number forms":       `[1.0,1.50,-0,-0.0,1e5,1E+05,1e-400,1e400,0.0000]`,
	"four bytes of text": `{"😀":"🏦 𝄞 🇪🇺"}`,
	"escapes":            `{"\u0061":"\u00e4\ud83d\ude00\/\b\f\n\r\t\"\\"}`,
	"escaped NUL":        `{"nul":"\u0000"}`,
	"lone surrogate":     `{"bad":"\ud800"}`,
	"accents both ways":  "[\"\u00e4\",\"a\u0308\"]",
	"odd characters":     "[\"\u2028\u2029\ufeff\u00a0\u200b\uffff\U0010ffff\x7f\"]",
	"quotes":             `{"q":"' '' \" ; -- $1 ? :x @y {{events}}"}`,
	"null":               `null`,
	"true":               `true`,
	"empty string":       `""`,
	"number":             `42`,
	"trailing line":      "{}\n",
	"deep":               strings.Repeat("[", 300) + strings.Repeat("]", 300),
}

func payloadJSON(t *testing.T, d *db) {
	for name, text := range payloads {
		e := event("Kept")
		e.Data, e.Metadata = []byte(text), []byte(text)
		d.append("account", name, store.NewStream, e)
	}
	check := func(when string) {
		for name, text := range payloads {
			list := d.stream("account", name)
			require.Len(t, list, 1)
			require.Equal(t, text, string(list[0].Data), "data with %s, %s", name, when)
			require.Equal(t, text, string(list[0].Metadata), "metadata with %s, %s", name, when)
		}
		for _, e := range d.all() {
			require.Equal(t, payloads[e.AggregateID], string(e.Data), "in the topic: %s, %s", e.AggregateID, when)
			require.Equal(t, payloads[e.AggregateID], string(e.Metadata), "in the topic: %s, %s", e.AggregateID, when)
		}
	}
	check("at once")
	d.reopen()
	check("after a restart")
}

func payloadOpaque(t *testing.T, d *db) {
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	opaque := map[string][]byte{"every byte": every, "empty": {}, "zeros": make([]byte, 9), "looks like JSON": []byte(`{"a": 1}`), "invalid UTF-8": []byte("\xff\xfe\x00abc\xc3")}
	n := 0
	for name, data := range opaque {
		e := event("Kept")
		e.Codec, e.CodecVersion, e.Data = "avro", 3, data
		e.ID, e.HasID = id(n), true
		n++
		d.append("account", name, store.NewStream, e)
		require.True(t, d.append("account", name, store.NewStream, e).Replayed, "%s: equal when it is repeated", name)
	}
	e := event("Kept")
	e.Codec, e.Data = "avro", nil
	d.append("account", "nil", store.NewStream, e)
	d.reopen()
	require.Equal(t, []byte{}, d.stream("account", "nil")[0].Data, "no data is empty data")
	for name, data := range opaque {
		got := d.stream("account", name)[0]
		require.Equal(t, data, got.Data, name)
		require.NotNil(t, got.Data, name)
		require.Equal(t, "avro", got.Codec)
		require.EqualValues(t, 3, got.CodecVersion)
	}
}

func payloadMetadata(t *testing.T, d *db) {
	absent, null := event("Kept"), event("Kept")
	null.Metadata = []byte(`null`)
	d.append("account", "A-1", store.NewStream, absent, null)
	list := d.stream("account", "A-1")
	require.Nil(t, list[0].Metadata)
	require.Equal(t, []byte(`null`), list[1].Metadata)
}

func payloadCodec(t *testing.T, d *db) {
	for i, c := range []struct {
		codec   string
		version int32
	}{{"avro", 1}, {"protobuf", 1 << 30}, {"x-ünser", 7}, {"JSON", 2}} {
		e := event("Kept")
		e.Codec, e.CodecVersion, e.Data = c.codec, c.version, []byte{0, 1, 2}
		d.append("account", fmt.Sprint(i), store.NewStream, e)
		got := d.stream("account", fmt.Sprint(i))[0]
		require.Equal(t, c.codec, got.Codec)
		require.Equal(t, c.version, got.CodecVersion)
	}
	// A version that is left out is the first.
	e := event("Kept")
	e.Codec = "avro"
	d.append("account", "plain", store.NewStream, e)
	require.EqualValues(t, 1, d.stream("account", "plain")[0].CodecVersion)
}

func payloadLarge(t *testing.T, d *db) {
	for _, n := range []int{4000, 4096, 65536, store.DefaultMaxEvent - 2} {
		e := event("Kept")
		e.Data = []byte(`"` + strings.Repeat("ä", n/2)[:n/2*2] + `"`)
		d.append("account", fmt.Sprint(n), store.NewStream, e)
		require.Equal(t, string(e.Data), string(d.stream("account", fmt.Sprint(n))[0].Data))
	}
}
