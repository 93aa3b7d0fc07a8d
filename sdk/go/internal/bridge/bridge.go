// Package bridge is the seam between the SDK and whoever runs a plugin: on
// wasip1 the host's imports, elsewhere a [Host] that package projhosttest sets.
// It knows ABI v1's calls and nothing of what they carry.
package bridge

// Host is what a plugin may ask of its host: the imports of ABI v1.
type Host interface {
	Done(index, status int32, ops []byte) int32
	Keys(index int32, keys []byte) int32
	Get(table int32, key, out []byte) int64
	List(table int32, key, after []byte, limit int32, out []byte) int64
	Log(level int32, message string)
	Fail(code int32, reason string)
	Random(b []byte)
}

// Current is the host of plugins outside Wasm; inside, nothing looks at it.
var Current Host

// Guest is a plugin as its host sees it: the exports of ABI v1.
type Guest interface {
	Describe() []byte
	Init(config []byte) int32
	Keys(frame []byte) int32
	Apply(frame []byte) int32
}

// GuestOf turns a *projhost.Plugin into its exports. The SDK sets it, so that
// its public face needs no method that an author could mistake for theirs.
var GuestOf func(plugin any) Guest
