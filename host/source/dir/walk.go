package dir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/host/source"
)

// walker lists the manifests below a directory.
type walker struct {
	onDir      func(string)
	found      []listedFile
	unreadable []string        // files and directories that could not be read, relative paths
	ancestors  map[string]bool // real paths from the root to here, to detect link loops
	problems   []source.Problem
}

// list walks a directory. It skips names that begin with a dot: editors' swap files, and the internal links of a mounted
// ConfigMap.
func (t *walker) list(path, rel string) error {
	t.onDir(path)
	realPath, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	if t.ancestors[realPath] {
		return nil
	}
	t.ancestors[realPath] = true
	defer delete(t.ancestors, realPath)
	entries, err := os.ReadDir(path)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := e.Name()
		if strings.HasPrefix(name, ".") {
			continue
		}
		t.entry(e, filepath.Join(path, name), strings.TrimPrefix(rel+"/"+name, "/"))
	}
	if rel == "" {
		slices.SortFunc(t.found, func(a, b listedFile) int { return strings.Compare(a.rel, b.rel) })
	}
	return nil
}

func (t *walker) entry(e fs.DirEntry, path, rel string) {
	m := listedFile{path: path, rel: rel, realPath: path}
	link := e.Type()&fs.ModeSymlink != 0
	manifest := slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(rel))
	if !link && !e.IsDir() && !manifest {
		return
	}
	info, err := os.Stat(path)
	if err == nil && link {
		m.realPath, err = filepath.EvalSymlinks(path)
	}
	switch {
	case err != nil && !link && errors.Is(err, fs.ErrNotExist): // deleted since it was listed
	case err != nil && (link && !manifest):
	case err != nil:
		t.addUnreadable(rel, err)
	case info.IsDir():
		if err := t.list(path, rel); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.addUnreadable(rel, err)
		}
	case manifest && info.Mode().IsRegular():
		if link {
			t.onDir(filepath.Dir(m.realPath))
		}
		m.info = info
		t.found = append(t.found, m)
	case manifest:
		t.problems = append(t.problems, source.Problem{File: rel, Err: errors.New("not a regular file: ignored"), Warning: true})
	}
}

func (t *walker) addUnreadable(rel string, err error) {
	t.unreadable = append(t.unreadable, rel)
	t.problems = append(t.problems, source.Problem{File: rel, Err: fmt.Errorf("%w; keeping what was read before", err)})
}
