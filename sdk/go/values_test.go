package projhost

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTimestamps(t *testing.T) {
	for text, want := range map[string]string{
		"2011-10-01T00:38:44.546+02:00":    "2011-09-30T22:38:44.546000Z",
		"2011-10-01T00:38:44Z":             "2011-10-01T00:38:44.000000Z",
		"1969-12-31T23:59:59.9999999Z":     "1969-12-31T23:59:59.999999Z",
		"2024-02-29T12:00:00.000001-11:30": "2024-02-29T23:30:00.000001Z",
		"0001-01-01T00:00:00z":             "0001-01-01T00:00:00.000000Z",
		"9999-12-31t23:59:59.999999Z":      "9999-12-31T23:59:59.999999Z",
	} {
		got, err := ParseTimestamp(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got.String(), text)
		require.Equal(t, got, TimestampOf(got.Time()))
	}
	for _, bad := range []string{"", "2011-10-01", "2011-13-01T00:00:00Z", "2011-02-29T00:00:00Z", "2011-10-01T24:00:00Z", "2011-10-01T00:60:00Z",
		"2011-10-01T00:00:60Z", "2011-10-01T00:00:00", "2011-10-01T00:00:00.Z", "2011-10-01T00:00:00+2:00", "2011-10-01 00:00:00Z", "2011-10-01T00:00:00+02:00x"} {
		_, err := ParseTimestamp(bad)
		require.Error(t, err, bad)
	}
}

// FuzzCalendar holds days and times to the standard library's.
func FuzzCalendar(f *testing.F) {
	f.Add(int64(0))
	f.Add(int64(-1))
	f.Add(int64(951782400000000)) // 29 February 2000
	f.Fuzz(func(t *testing.T, us int64) {
		ts := Timestamp(us)
		std := ts.Time()
		if std.Year() < 0 || std.Year() > 9999 {
			return
		}
		require.Equal(t, std.Format("2006-01-02T15:04:05.000000Z"), ts.String())
		back, err := ParseTimestamp(ts.String())
		require.NoError(t, err)
		require.Equal(t, ts, back)
		year, month, day := ts.Date().Civil()
		require.Equal(t, []int{std.Year(), int(std.Month()), std.Day()}, []int{year, month, day})
		require.Equal(t, ts.Date(), NewDate(year, month, day))
	})
}

func FuzzParseTimestamp(f *testing.F) {
	f.Add("2011-10-01T00:38:44.546+02:00")
	f.Fuzz(func(t *testing.T, s string) {
		got, err := ParseTimestamp(s)
		std, stdErr := time.Parse(time.RFC3339Nano, s)
		if err == nil && stdErr == nil {
			require.Equal(t, std.Unix()*1_000_000+int64(std.Nanosecond()/1000), int64(got), s)
		}
		if stdErr == nil && s[10] == 'T' { // the standard library takes a comma and offsets of a day, too
			require.True(t, err == nil || len(s) > 19 && s[19] == ',' || got == 0, s)
		}
	})
}

func TestDates(t *testing.T) {
	d, err := ParseDate("2024-02-29")
	require.NoError(t, err)
	require.Equal(t, NewDate(2024, 2, 29), d)
	require.Equal(t, NewDate(2024, 3, 0), d)
	require.Equal(t, NewDate(2023, 14, 29), d)
	require.Equal(t, "2024-02-29", d.String())
	for _, bad := range []string{"", "2023-02-29", "2023-2-1", "2023-00-01", "2023-01-32", "20230101  ", "abcd-ef-gh"} {
		_, err := ParseDate(bad)
		require.Error(t, err, bad)
	}
	require.Equal(t, "23:59:59.000001", TimeOfDay(86_399_000_001).String())
}

func TestUUIDs(t *testing.T) {
	const text = "96f9a74e-4bb1-5940-b42b-1789908e7cf0"
	id, err := ParseUUID(text)
	require.NoError(t, err)
	require.Equal(t, text, id.String())
	for _, bad := range []string{"", text[1:], text + "0", "96f9a74e04bb1-5940-b42b-1789908e7cf0", "g6f9a74e-4bb1-5940-b42b-1789908e7cf0"} {
		_, err := ParseUUID(bad)
		require.Error(t, err, bad)
	}
}

func TestNull(t *testing.T) {
	var none Null[string]
	require.Equal(t, "other", none.Or("other"))
	require.Equal(t, "one", Some("one").Or("other"))
}
