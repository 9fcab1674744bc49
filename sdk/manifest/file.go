package manifest

import (
	"fmt"
	"os"
	"path/filepath"
)

// File is the name of the file of a manifest, beside the source of its plugin.
const File = "plugin.json"

// ReadFile reads the file of a manifest.
func ReadFile(path string) (*Manifest, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	m, err := ParseFile(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return m, nil
}

// FindFile returns the file of the manifest of the plugin in a folder: in it, in the only folder within it that has one, or in
// the folder above, for one policy in several languages.
func FindFile(dir string) (string, error) {
	for _, pattern := range []string{"", "*", ".."} {
		found, _ := filepath.Glob(filepath.Join(dir, pattern, File))
		switch {
		case len(found) == 1:
			return found[0], nil
		case len(found) > 1:
			return "", fmt.Errorf("%s and %s: want one %s", found[0], found[1], File)
		}
	}
	return "", fmt.Errorf("%s: no %s", dir, File)
}

// EmbedFile puts the manifest of a file into the module of another file, in place of one that it has.
func EmbedFile(module, file string) error {
	m, err := ReadFile(file)
	if err != nil {
		return err
	}
	old, err := os.ReadFile(module)
	if err != nil {
		return err
	}
	now, err := Embed(old, m)
	if err != nil {
		return fmt.Errorf("%s: %w", module, err)
	}
	temporary := module + ".new"
	if err := os.WriteFile(temporary, now, 0o644); err != nil {
		return err
	}
	return os.Rename(temporary, module)
}
