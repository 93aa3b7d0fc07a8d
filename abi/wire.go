package abi

// ImportModule is the module name of the host's imports. It carries the major
// version, as does the export [ExportMarker].
const ImportModule = "projhost_v1"

// Exports of a guest.
const (
	ExportMemory     = "memory"
	ExportInitialize = "_initialize"
	ExportMarker     = "ph_abi_v1"
	ExportAlloc      = "ph_alloc"
	ExportDescribe   = "ph_describe"
	ExportInit       = "ph_init"
	ExportKeys       = "ph_keys"
	ExportApply      = "ph_apply"
)

// Imports of a guest, in module [ImportModule].
const (
	ImportDone    = "done"
	ImportKeys    = "keys"
	ImportGet     = "get"
	ImportGetMany = "get_many"
	ImportList    = "list"
	ImportLog     = "log"
	ImportFail    = "fail"
	ImportNow     = "now_us"
	ImportRandom  = "random"
)

// What imports answer besides 0 or a length. Guests take every negative number
// they do not know as ResultRefused.
const (
	ResultStop    = -1 // done, keys: return from the export at once
	ResultAbsent  = -1 // get: there is no such row
	ResultRefused = -2 // get, get_many, list: see MaxRows, or no entry is being worked on
)

// Levels of the import log.
const (
	LogTrace = 0
	LogDebug = 1
	LogInfo  = 2
	LogWarn  = 3
	LogError = 4
)

// Limits of ABI v1 that hold whatever the config says.
const (
	MaxKeyRunes = 255  // code points of an id, a key, a child key or a name of a type
	MaxKeys     = 1000 // keys of one message
	MaxColumns  = 256  // columns of a table

	// MaxRows is how many rows one get_many or list may ask for. More, as well
	// as none, an undeclared table and key bytes of the wrong shape, is refused.
	MaxRows = 10_000
)

// PackRegion is what ph_describe returns for a region of the guest's memory.
func PackRegion(ptr, size uint32) int64 { return int64(uint64(ptr)<<32 | uint64(size)) }

// UnpackRegion undoes [PackRegion].
func UnpackRegion(region int64) (ptr, size uint32) {
	return uint32(uint64(region) >> 32), uint32(uint64(region))
}
