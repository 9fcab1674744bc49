package vm

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
)

// modulesDir is the folder of the modules, in the cache and in the initramfs.
const modulesDir = "modules"

// initramfs writes what a kernel with modules starts from: the program init, the modules, and places to mount on.
func initramfs(to, init, modules string) error {
	var b bytes.Buffer
	entry := func(name string, mode int, text []byte) {
		fmt.Fprintf(&b, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00", 0, mode, 0, 0, 1, 0, len(text), 0, 0, 0, 0, len(name)+1, 0, name)
		pad := func() { b.Write(make([]byte, -b.Len()&3)) }
		pad()
		b.Write(text)
		pad()
	}
	for _, dir := range []string{modulesDir, filepath.Base(hostDir), filepath.Base(programsDir)} {
		entry(dir, 0o40755, nil)
	}
	files, err := filepath.Glob(filepath.Join(modules, "*"))
	if err != nil {
		return err
	}
	for _, file := range append(files, init) {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		name := "init"
		if file != init {
			name = filepath.Join(modulesDir, filepath.Base(file))
		}
		entry(name, 0o100755, text)
	}
	entry("TRAILER!!!", 0, nil)
	return os.WriteFile(to, b.Bytes(), 0o600)
}
