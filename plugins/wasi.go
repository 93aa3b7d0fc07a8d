package plugins

import (
	"context"
	"encoding/binary"

	"github.com/tetratelabs/wazero/api"

	"github.com/projhost/projhost/plugins/internal/wasm"
)

const wasiModule = "wasi_snapshot_preview1"

// Error numbers of WASI preview 1.
const (
	errnoSuccess = 0
	errnoBadf    = 8
	errnoFault   = 21
	errnoInval   = 28
	errnoNosys   = 52
)

const (
	pollMax  = 1024     // subscriptions of one poll_oneoff
	writeMax = 64 << 10 // bytes of one fd_write that are looked at
)

// wasiFuncs are all functions of WASI preview 1, so that what a tool chain
// links in finds its imports. Only those that need nothing of the machine work:
// a guest learns no time, name or file that is not in its entry (P6, P7).
var wasiFuncs = func() []hostFunc {
	const i, l = wasm.I32, wasm.I64
	errno := func(params ...wasm.ValueType) wasm.FuncType {
		return wasm.FuncType{Params: params, Results: []wasm.ValueType{i}}
	}
	return []hostFunc{
		{"args_get", errno(i, i), wasiAnswer(errnoSuccess)},
		{"args_sizes_get", errno(i, i), wasiTwoZeros},
		{"environ_get", errno(i, i), wasiAnswer(errnoSuccess)},
		{"environ_sizes_get", errno(i, i), wasiTwoZeros},
		{"clock_res_get", errno(i, i), wasiClockRes},
		{"clock_time_get", errno(i, l, i), wasiClockTime},
		{"random_get", errno(i, i), wasiRandom},
		{"fd_write", errno(i, i, i, i), wasiWrite},
		{"fd_prestat_get", errno(i, i), wasiAnswer(errnoBadf)},
		{"poll_oneoff", errno(i, i, i, i), wasiPoll},
		{"sched_yield", errno(), wasiAnswer(errnoSuccess)},
		{"proc_exit", wasm.FuncType{Params: []wasm.ValueType{i}}, wasiExit},

		{"fd_advise", errno(i, l, l, i), wasiAnswer(errnoNosys)},
		{"fd_allocate", errno(i, l, l), wasiAnswer(errnoNosys)},
		{"fd_close", errno(i), wasiAnswer(errnoNosys)},
		{"fd_datasync", errno(i), wasiAnswer(errnoNosys)},
		{"fd_fdstat_get", errno(i, i), wasiAnswer(errnoNosys)},
		{"fd_fdstat_set_flags", errno(i, i), wasiAnswer(errnoNosys)},
		{"fd_fdstat_set_rights", errno(i, l, l), wasiAnswer(errnoNosys)},
		{"fd_filestat_get", errno(i, i), wasiAnswer(errnoNosys)},
		{"fd_filestat_set_size", errno(i, l), wasiAnswer(errnoNosys)},
		{"fd_filestat_set_times", errno(i, l, l, i), wasiAnswer(errnoNosys)},
		{"fd_pread", errno(i, i, i, l, i), wasiAnswer(errnoNosys)},
		{"fd_prestat_dir_name", errno(i, i, i), wasiAnswer(errnoNosys)},
		{"fd_pwrite", errno(i, i, i, l, i), wasiAnswer(errnoNosys)},
		{"fd_read", errno(i, i, i, i), wasiAnswer(errnoNosys)},
		{"fd_readdir", errno(i, i, i, l, i), wasiAnswer(errnoNosys)},
		{"fd_renumber", errno(i, i), wasiAnswer(errnoNosys)},
		{"fd_seek", errno(i, l, i, i), wasiAnswer(errnoNosys)},
		{"fd_sync", errno(i), wasiAnswer(errnoNosys)},
		{"fd_tell", errno(i, i), wasiAnswer(errnoNosys)},
		{"path_create_directory", errno(i, i, i), wasiAnswer(errnoNosys)},
		{"path_filestat_get", errno(i, i, i, i, i), wasiAnswer(errnoNosys)},
		{"path_filestat_set_times", errno(i, i, i, i, l, l, i), wasiAnswer(errnoNosys)},
		{"path_link", errno(i, i, i, i, i, i, i), wasiAnswer(errnoNosys)},
		{"path_open", errno(i, i, i, i, i, l, l, i, i), wasiAnswer(errnoNosys)},
		{"path_readlink", errno(i, i, i, i, i, i), wasiAnswer(errnoNosys)},
		{"path_remove_directory", errno(i, i, i), wasiAnswer(errnoNosys)},
		{"path_rename", errno(i, i, i, i, i, i), wasiAnswer(errnoNosys)},
		{"path_symlink", errno(i, i, i, i, i), wasiAnswer(errnoNosys)},
		{"path_unlink_file", errno(i, i, i), wasiAnswer(errnoNosys)},
		{"proc_raise", errno(i), wasiAnswer(errnoNosys)},
		{"sock_accept", errno(i, i, i), wasiAnswer(errnoNosys)},
		{"sock_recv", errno(i, i, i, i, i, i), wasiAnswer(errnoNosys)},
		{"sock_send", errno(i, i, i, i, i), wasiAnswer(errnoNosys)},
		{"sock_shutdown", errno(i, i), wasiAnswer(errnoNosys)},
	}
}()

func wasiAnswer(errno uint64) api.GoModuleFunc {
	// A function without parameters has room for its result all the same.
	return func(_ context.Context, _ api.Module, s []uint64) { s[0] = errno }
}

func putU32(m *memory, ptr, v uint32) bool {
	b, ok := m.view(ptr, 4)
	if ok {
		binary.LittleEndian.PutUint32(b, v)
	}
	return ok
}

func putU64(m *memory, ptr uint32, v uint64) bool {
	b, ok := m.view(ptr, 8)
	if ok {
		binary.LittleEndian.PutUint64(b, v)
	}
	return ok
}

func errnoOf(ok bool) uint64 {
	if ok {
		return errnoSuccess
	}
	return errnoFault
}

// wasiTwoZeros answers args_sizes_get and environ_sizes_get: there are none.
func wasiTwoZeros(ctx context.Context, _ api.Module, s []uint64) {
	m := callOf(ctx).mem
	s[0] = errnoOf(putU32(m, u(s[0]), 0) && putU32(m, u(s[1]), 0))
}

const (
	clockRealtime = 0
	clockLast     = 3 // monotonic and CPU times: all tick by reads
)

func wasiClockRes(ctx context.Context, _ api.Module, s []uint64) {
	if u(s[0]) > clockLast {
		s[0] = errnoInval
		return
	}
	s[0] = errnoOf(putU64(callOf(ctx).mem, u(s[1]), 1000))
}

func wasiClockTime(ctx context.Context, _ api.Module, s []uint64) {
	c := callOf(ctx)
	id, out := u(s[0]), u(s[2])
	switch {
	case id == clockRealtime:
		s[0] = errnoOf(putU64(c.mem, out, c.realtimeNS()))
	case id <= clockLast:
		s[0] = errnoOf(putU64(c.mem, out, c.monotonicNS()))
	default:
		s[0] = errnoInval
	}
}

func wasiRandom(ctx context.Context, _ api.Module, s []uint64) {
	c := callOf(ctx)
	b, ok := c.mem.view(u(s[0]), u(s[1]))
	if ok {
		c.fillRandom(b)
	}
	s[0] = errnoOf(ok)
}

// wasiWrite sends standard output and error to the log. No more than writeMax
// bytes of one call are looked at: no clock stops the host while it does.
func wasiWrite(ctx context.Context, _ api.Module, s []uint64) {
	c := callOf(ctx)
	fd, iovs, count, out := u(s[0]), u(s[1]), u(s[2]), u(s[3])
	if fd != 1 && fd != 2 {
		s[0] = errnoBadf
		return
	}
	if uint64(count)*8 > uint64(len(c.mem.buf)) {
		s[0] = errnoFault
		return
	}
	list, ok := c.mem.view(iovs, count*8)
	written := uint64(0)
	for ok && len(list) > 0 {
		var b []byte
		if b, ok = c.mem.view(binary.LittleEndian.Uint32(list), binary.LittleEndian.Uint32(list[4:])); ok {
			if written < writeMax {
				c.write(int(fd-1), b[:min(uint64(len(b)), writeMax-written)])
			}
			written += uint64(len(b))
		}
		list = list[8:]
	}
	if written > uint64(len(c.mem.buf)) {
		s[0] = errnoInval
		return
	}
	s[0] = errnoOf(ok && putU32(c.mem, out, uint32(written)))
}

// wasiPoll says at once that everything waited for has happened.
func wasiPoll(ctx context.Context, _ api.Module, s []uint64) {
	const subscription, event = 48, 32
	c := callOf(ctx)
	in, out, n, countOut := u(s[0]), u(s[1]), u(s[2]), u(s[3])
	if n == 0 || n > pollMax {
		s[0] = errnoInval
		return
	}
	from, ok1 := c.mem.view(in, n*subscription)
	to, ok2 := c.mem.view(out, n*event)
	if !ok1 || !ok2 {
		s[0] = errnoFault
		return
	}
	for k := range n {
		var e [event]byte
		copy(e[:8], from[k*subscription:]) // user data
		e[10] = from[k*subscription+8]     // kind
		copy(to[k*event:], e[:])           // no error, nothing to read
	}
	s[0] = errnoOf(putU32(c.mem, countOut, n))
}

func wasiExit(ctx context.Context, _ api.Module, s []uint64) {
	panic(&exited{code: u(s[0])})
}
