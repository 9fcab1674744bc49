package safefile

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// OpenFolder opens a folder, creating it if it does not exist. It refuses a folder that users other than this process's
// and root may write to, such as /tmp: they could put a link, a file or a socket of their own in the place of ours. Files
// are named relative to the folder, which stays the same if its path leads elsewhere later.
func OpenFolder(path string) (*os.Root, error) {
	if err := os.MkdirAll(path, 0o755); err != nil {
		return nil, err
	}
	return openFolder(path)
}

func openFolder(path string) (*os.Root, error) {
	folder, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	info, err := folder.Stat(".")
	if err == nil {
		err = checkAccess("folder "+path, info, true, 0o002)
	}
	if err != nil {
		folder.Close()
		return nil, err
	}
	return folder, nil
}

// CheckPrivate checks that path is a regular file or folder of this process's user: a folder that others cannot access, or a file
// that others cannot write. It follows no link.
func CheckPrivate(path string) error {
	return checkPath(path, false, 0o077)
}

// CheckReadOnly checks that path is a regular file or folder that only root and this process's user can write. It follows no
// link.
func CheckReadOnly(path string) error {
	return checkPath(path, true, 0o022)
}

func checkPath(path string, root bool, others fs.FileMode) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		others &= 0o022
	}
	return checkAccess(path, info, root, others)
}

// checkAccess checks that a regular file or folder belongs to this process's user, or to root if that may be, and that group and
// others do not have any of these permissions.
func checkAccess(path string, info os.FileInfo, root bool, others fs.FileMode) error {
	mode := info.Mode()
	switch uid, ok := owner(info); {
	case !mode.IsDir() && !mode.IsRegular():
		return fmt.Errorf("%s is neither a folder nor a file", path)
	case ok && uid != os.Geteuid() && !(root && uid == 0):
		return fmt.Errorf("%s belongs to another user (uid %d)", path, uid)
	case mode.Perm()&others == 0:
		return nil
	case others == 0o077:
		return fmt.Errorf("%s has mode %#o: others can reach it, want 0700", path, mode.Perm())
	case others == 0o022:
		return fmt.Errorf("%s has mode %#o: others can write it", path, mode.Perm())
	}
	return fmt.Errorf("%s: every user may write to it (mode %s)", path, mode)
}

// ReadPrivate is Read of a file that only this process's user and root can have written: it checks the folder.
func ReadPrivate(path string, limit int64) ([]byte, error) {
	folder, err := openFolder(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	folder.Close()
	return Read(path, limit)
}

// Replace writes a file that only its owner can read, in a folder that OpenFolder accepts. Readers see the old content or
// the new one. There is no fsync: a power failure may lose it. After an error the old file is unchanged, and no partly
// written one remains.
func Replace(path string, content []byte) (err error) {
	folder, err := OpenFolder(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer folder.Close()
	name := filepath.Base(path)
	temp := name + ".new"
	_ = folder.Remove(temp)                                                   // of a process that was killed
	f, err := folder.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600) // follows no link
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = folder.Rename(temp, name)
	}
	if err != nil {
		_ = folder.Remove(temp)
	}
	return err
}

// Owned reports whether a file belongs to this process's user or to root.
func Owned(info os.FileInfo) bool {
	uid, ok := owner(info)
	return !ok || uid == 0 || uid == os.Geteuid()
}
