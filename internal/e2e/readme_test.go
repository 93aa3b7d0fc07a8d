package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The tutorial of the README is followed to the letter: its files are written,
// its commands run, beside a clone that is called projhost.
func TestTutorial(t *testing.T) {
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	require.NoError(t, err)
	beside := t.TempDir()
	require.NoError(t, os.Symlink(root, filepath.Join(beside, "projhost")))

	s := &site{t: t, dir: filepath.Join(beside, "channels")}
	in := beside
	blocks := strings.Split(string(readme), "<!-- tested: ")[1:]
	require.Len(t, blocks, 6)
	for _, block := range blocks {
		what, rest, _ := strings.Cut(block, " -->")
		_, rest, _ = strings.Cut(rest, "\n```")
		_, rest, _ = strings.Cut(rest, "\n")
		text, _, found := strings.Cut(rest, "\n```")
		require.True(t, found, what)
		switch what {
		case "sh":
			s.shell(in, text, "")
			in = s.dir
		case "with a host":
			require.NoError(t, os.WriteFile(filepath.Join(s.dir, "free-port.toml"), []byte("[http]\nlisten = \"127.0.0.1:0\"\n"+s.read("config.toml")), 0o600))
			h := s.start("--config", "free-port.toml")
			out := s.shell(in, text, h.url)
			for _, want := range []string{"app", "100.75", "7.25", `"deposits":2`, "projection/channels", "running"} {
				require.Contains(t, out, want)
			}
			h.stop()
		default:
			require.NoError(t, os.WriteFile(filepath.Join(s.dir, what), []byte(text+"\n"), 0o600))
		}
	}
}

func (s *site) read(name string) string {
	s.t.Helper()
	b, err := os.ReadFile(filepath.Join(s.dir, name))
	require.NoError(s.t, err)
	return string(b)
}

// shell runs lines of a document with the built program as projhost.
func (s *site) shell(dir, text, url string) string {
	s.t.Helper()
	c := exec.CommandContext(s.t.Context(), "sh", "-e")
	c.Dir = dir
	c.Stdin = strings.NewReader(text)
	c.Env = append(os.Environ(), "PATH="+filepath.Dir(program)+string(os.PathListSeparator)+os.Getenv("PATH"), "PROJHOST_URL="+url)
	out, err := c.CombinedOutput()
	require.NoErrorf(s.t, err, "%s\n%s", text, out)
	return string(out)
}
