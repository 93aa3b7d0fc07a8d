package abi

import (
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestDatesAreThoseOfTheCalendar(t *testing.T) {
	for year := 0; year <= 10000; year++ {
		if year%100 > 4 && year%100 < 96 && year%37 != 0 {
			continue // centuries and a few years between them are enough
		}
		for month := 0; month <= 13; month++ {
			for _, day := range []int{0, 1, 15, 28, 29, 30, 31, 32} {
				text := fmt.Sprintf("%04d-%02d-%02d", year, month, day)
				want, err := time.Parse(time.DateOnly, text)
				days, rest, ok := parseDate([]byte(text))
				require.Equal(t, err == nil && year >= 1 && year <= 9999, ok && len(rest) == 0, text)
				if ok && len(rest) == 0 {
					require.Equal(t, want.Unix()/86400, days, text)
				}
			}
		}
	}
}

func TestClocks(t *testing.T) {
	for text, want := range map[string]int64{
		"00:00:00": 0, "23:59:59": 86399e6, "01:02:03.5": 3723.5e6, "00:00:00.000001": 1, "00:00:00.120000": 120000,
	} {
		us, rest, ok := parseClock([]byte(text))
		require.True(t, ok && len(rest) == 0, text)
		require.Equal(t, want, us, text)
	}
	for _, text := range []string{"", "1:00:00", "24:00:00", "00:60:00", "00:00:60", "00:00:00.", "00:00:00.1234567", "00-00-00", "0a:00:00"} {
		_, _, ok := parseClock([]byte(text))
		require.False(t, ok, text)
	}
}

// TestBase64EqualsTheStandardLibrary, in its strict form.
func TestBase64EqualsTheStandardLibrary(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	const letters = "AQgwBZ+/09az=="
	for range 20_000 {
		text := make([]byte, random.IntN(13))
		for i := range text {
			text[i] = letters[random.IntN(len(letters))]
		}
		want, err := base64.StdEncoding.Strict().DecodeString(string(text))
		got, ok := parseBase64(text)
		require.Equal(t, err == nil, ok, "%s", text)
		if ok {
			require.Equal(t, string(want), string(got), "%s", text)
		}
	}
}

func TestDecimalDigits(t *testing.T) {
	for text, want := range map[string]bool{
		"0": true, "-0": true, "12.34": true, "-12.34": true, "0012.34": true, "12.3": true, "123": false, "1.234": false,
		"": false, "-": false, ".5": false, "5.": false, "+1": false, "1e2": false, "1.2.3": false, " 1": false, "--1": false,
	} {
		require.Equal(t, want, fitsDecimal([]byte(text), 4, 2), text)
	}
}

func TestHeapBytes(t *testing.T) {
	for text, want := range map[string]uint64{
		"": 0, "16MiB": 16 << 20, "1KiB": 1 << 10, "4GiB": 4 << 30,
		"5GiB": 0, "0MiB": 0, "+1MiB": 0, "-1MiB": 0, "16": 0, "MiB": 0, "16MB": 0, "1.5MiB": 0, "99999999999GiB": 0,
	} {
		m := Manifest{Heap: text}
		require.Equal(t, want, m.HeapBytes(), text)
	}
}
