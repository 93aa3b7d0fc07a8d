//go:build !wasip1

package bridge

// The functions below are those of the wasip1 build.

func Done(index, status int32, ops []byte) int32 { return Current.Done(index, status, ops) }

func Keys(index int32, b []byte) int32 { return Current.Keys(index, b) }

func Get(table int32, key, out []byte) int64 { return Current.Get(table, key, out) }

func List(table int32, key, after []byte, limit int32, out []byte) int64 {
	return Current.List(table, key, after, limit, out)
}

func Log(level int32, message string) { Current.Log(level, message) }

func Fail(code int32, reason string) { Current.Fail(code, reason) }

func Random(b []byte) { Current.Random(b) }

// Trap goes on with a panic: a plugin's own test wants its stack trace.
func Trap(cause any) { panic(cause) }
