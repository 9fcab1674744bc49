package plugins

import (
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func packed(t testing.TB, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestModuleFilesMayBeCompressed(t *testing.T) {
	module := append([]byte("\x00asm\x01\x00\x00\x00"), bytes.Repeat([]byte("x"), 1000)...)
	good := packed(t, module)
	for name, c := range map[string]struct {
		text []byte
		want string // of the error; "": the module
	}{
		"as it is":        {module, ""},
		"compressed":      {good, ""},
		"in two parts":    {append(packed(t, module[:500]), packed(t, module[500:])...), ""},
		"cut off":         {good[:len(good)-9], "gzip: unexpected EOF"},
		"damaged":         {append(append([]byte{}, good[:len(good)-8]...), make([]byte, 8)...), "gzip: gzip: invalid checksum"},
		"with a tail":     {append(append([]byte{}, good...), "tail"...), "gzip: "},
		"a bomb":          {packed(t, make([]byte, 100*MaxModule/16)), "gzip: more than 16777216 bytes when unpacked"},
		"not gzip at all": {[]byte("\x1f\x8bnothing"), "gzip: "},
	} {
		path := filepath.Join(t.TempDir(), "module")
		if err := os.WriteFile(path, c.text, 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := ReadModuleFile(path)
		if c.want == "" && (err != nil || !bytes.Equal(got, module)) || c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), path+": "+c.want)) {
			t.Errorf("%s: %d bytes, %v; want %q", name, len(got), err, c.want)
		}
	}
	large := filepath.Join(t.TempDir(), "large")
	if err := os.WriteFile(large, make([]byte, MaxModule+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadModuleFile(large); err == nil {
		t.Error("a large file is accepted")
	}
}

func FuzzUnpack(f *testing.F) {
	f.Add([]byte("\x00asm"))
	f.Add(packed(f, []byte("\x00asm")))
	f.Fuzz(func(t *testing.T, text []byte) {
		if module, err := unpack(text); err == nil && len(module) > MaxModule {
			t.Errorf("%d bytes", len(module))
		}
	})
}
