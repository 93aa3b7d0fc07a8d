package plugins

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/tetratelabs/wazero/sys"
)

const (
	trapFramesMax = 6    // functions a trap is told with
	trapTextMax   = 1000 // bytes
)

func isCutOff(err error) bool {
	var c *cutOff
	return errors.As(err, &c)
}

// wasClosed tells of an engine that found the module closed from outside. A
// guest cannot bring this about: proc_exit is an import of ours.
func wasClosed(err error) bool {
	var closed *sys.ExitError
	return errors.As(err, &closed)
}

// trapText says in one line what ended a guest and in which of its functions.
// The engine's own text is one frame a line under a heading.
func trapText(err error, exports map[uint32]string) string {
	var exit *exited
	if errors.As(err, &exit) {
		return withFrames(exit.Error(), err, exports)
	}
	what := err.Error()
	if first, _, found := strings.Cut(what, "\n"); found {
		what = first
	}
	what = strings.TrimPrefix(what, "wasm error: ")
	what = strings.TrimSuffix(what, " (recovered by wazero)")
	if what == "stack overflow" {
		what = "stack overflow: calls are nested too deeply"
	}
	return withFrames(what, err, exports)
}

func withFrames(what string, err error, exports map[uint32]string) string {
	if frames := trapFrames(err.Error(), exports); len(frames) > 0 {
		what += " in " + frames[0]
		if len(frames) > 1 {
			what += ", called by " + strings.Join(frames[1:], ", ")
		}
	}
	return clean([]byte(what), trapTextMax)
}

// trapFrames reads the functions out of the engine's text, innermost first:
//
//	wasm stack trace:
//		module.name(i32,i32) i32
func trapFrames(text string, exports map[uint32]string) []string {
	_, stack, found := strings.Cut(text, "wasm stack trace:\n")
	if !found {
		return nil
	}
	var frames []string
	for line := range strings.Lines(stack) {
		name, isFrame := strings.CutPrefix(strings.TrimRight(line, "\n"), "\t")
		if !isFrame || len(frames) == trapFramesMax || strings.HasPrefix(name, "... ") {
			break
		}
		frames = append(frames, functionName(name, exports))
	}
	return frames
}

// functionName takes the module's name and the types off a frame. A name may
// hold dots and brackets itself (Go's do); a function without one is told by
// its export or its number.
func functionName(frame string, exports map[uint32]string) string {
	if i := strings.LastIndexByte(frame, '('); i > 0 {
		frame = frame[:i]
	}
	if i := strings.IndexByte(frame, '.'); i >= 0 {
		frame = frame[i+1:]
	}
	if number, ok := strings.CutPrefix(frame, "$"); ok {
		if n, err := strconv.ParseUint(number, 10, 32); err == nil && exports[uint32(n)] != "" {
			return exports[uint32(n)]
		}
		return "function " + number
	}
	return demangle(frame)
}

var rustHash = regexp.MustCompile(`^h[0-9a-f]{16}$`)

// demangle makes the common C++ and Rust names readable: the nested name is
// taken out of _ZN…E and the types behind it are dropped. Any other name stays.
func demangle(name string) string {
	rest, ok := strings.CutPrefix(name, "_ZN")
	nested := ok
	if !ok {
		if rest, ok = strings.CutPrefix(name, "_Z"); !ok {
			return name
		}
	}
	var parts []string
	for rest != "" && rest[0] >= '1' && rest[0] <= '9' {
		n, i := 0, 0
		for i < len(rest) && rest[i] >= '0' && rest[i] <= '9' && n < 1<<16 {
			n = n*10 + int(rest[i]-'0')
			i++
		}
		if n > len(rest)-i {
			return name
		}
		parts = append(parts, rest[i:i+n])
		rest = rest[i+n:]
		if !nested {
			break
		}
	}
	if len(parts) == 0 || nested && !strings.HasPrefix(rest, "E") {
		return name
	}
	if n := len(parts); n > 1 && rustHash.MatchString(parts[n-1]) {
		parts = parts[:n-1]
	}
	full := strings.Join(parts, "::")
	for _, r := range [...][2]string{{"$LT$", "<"}, {"$GT$", ">"}, {"$u20$", " "}, {"$RF$", "&"}, {"$C$", ","}, {"..", "::"}} {
		full = strings.ReplaceAll(full, r[0], r[1])
	}
	return strings.TrimPrefix(full, "_")
}

// recovered makes an error of a panic that came out of the engine.
func recovered(p any) error {
	if err, ok := p.(error); ok {
		return fmt.Errorf("panic in the engine: %w", err)
	}
	return fmt.Errorf("panic in the engine: %v", p)
}
