package vm

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
)

// change replaces a text that is once in a file of the kernel's source.
type change struct{ file, old, new string }

// registers gives the kernel room for the XSAVE area of processors with AMX, 11,008 bytes. Up to Linux 6.12, User-Mode Linux has
// 2,696 bytes, those of AVX-512: with AMX, PTRACE_SETREGSET refuses them, and every process of the guest is killed. linux.config
// makes the stacks larger, which have such areas in them.
var registers = change{"arch/x86/um/user-offsets.c", "DEFINE_LONGS(HOST_FP_SIZE, 2696)", "DEFINE_LONGS(HOST_FP_SIZE, 11008)"}

// killedFork keeps the kernel from a panic when a process is killed while it forks: since 6.8, dup_mmap leaves XA_ZERO_ENTRY
// where it has stopped, which User-Mode Linux takes for an area of memory when exit_mmap asks it to flush all of them.
var killedFork = change{
	"arch/um/kernel/tlb.c",
	"\tfor_each_vma(vmi, vma)\n\t\tum_tlb_mark_sync(mm, vma->vm_start, vma->vm_end);\n",
	"\tfor_each_vma(vmi, vma) {\n\t\tif (xa_is_zero(vma))\n\t\t\tbreak;\n\t\tum_tlb_mark_sync(mm, vma->vm_start, vma->vm_end);\n\t}\n",
}

// patches returns the changes of a series.
func patches(series string) []change {
	if series == "6.12" {
		return []change{registers, killedFork}
	}
	return []change{registers}
}

func patch(source string, changes []change) error {
	for _, c := range changes {
		path := filepath.Join(source, c.file)
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if n := bytes.Count(text, []byte(c.old)); n != 1 {
			return fmt.Errorf("%s has %q %d times, want 1", path, c.old, n)
		}
		if err := os.WriteFile(path, bytes.Replace(text, []byte(c.old), []byte(c.new), 1), 0o644); err != nil {
			return err
		}
	}
	return nil
}
