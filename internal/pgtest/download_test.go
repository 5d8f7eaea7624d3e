//go:build unix

package pgtest

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
)

// installation copies the Postgres of this machine, as far as a server needs
// it, to a directory laid out like a downloaded one.
func installation(t *testing.T) string {
	t.Helper()
	bin, err := newConfig().finder.find(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// Some machines have links to the programs in another directory.
	program, err := filepath.EvalSymlinks(filepath.Join(bin, "postgres"))
	if err != nil {
		t.Fatal(err)
	}
	bin = filepath.Dir(program)
	// Debian keeps share and lib elsewhere; builds without pg_config beside bin.
	lib, share := filepath.Join(bin, "..", "lib"), filepath.Join(bin, "..", "share")
	if pgConfig := filepath.Join(bin, "pg_config"); exec.Command(pgConfig, "--version").Run() == nil {
		ask := func(option string) string {
			out, err := exec.Command(pgConfig, option).Output()
			if err != nil {
				t.Fatal(err)
			}
			return strings.TrimSpace(string(out))
		}
		lib, share = ask("--pkglibdir"), ask("--sharedir")
	}
	// What counts for finding one from the other is how they lie to each other.
	root := bin
	for !strings.HasPrefix(lib, root+"/") || !strings.HasPrefix(share, root+"/") {
		root = filepath.Dir(root)
	}
	home := t.TempDir()
	place := func(dir string) string {
		to := filepath.Join(home, strings.TrimPrefix(dir, root))
		if err := os.MkdirAll(to, 0o755); err != nil {
			t.Fatal(err)
		}
		return to
	}
	programs := []string{"postgres", "initdb", "pg_ctl"}
	to := place(bin)
	for _, program := range programs {
		if err := copyTree(filepath.Join(bin, program), filepath.Join(to, program)); err != nil {
			t.Fatal(err)
		}
	}
	copyEntries(t, lib, place(lib), func(name string) bool {
		// The code for jit is large, and Postgres does without.
		return name != "bitcode" && !strings.Contains(name, "llvm") && !strings.Contains(name, "LLVM")
	})
	copyEntries(t, share, place(share), func(name string) bool { return name != "man" && name != "doc" && name != "locale" })
	if top := filepath.Join(home, "bin"); to != top {
		if err := os.Mkdir(top, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, program := range programs {
			if err := os.Symlink(filepath.Join("..", strings.TrimPrefix(bin, root), program), filepath.Join(top, program)); err != nil {
				t.Fatal(err)
			}
		}
	}
	return home
}

func copyEntries(t *testing.T, from, to string, wanted func(name string) bool) {
	t.Helper()
	entries, err := os.ReadDir(from)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if _, err := os.Stat(filepath.Join(from, e.Name())); err != nil || !wanted(e.Name()) {
			continue // not wanted, or a dangling link
		}
		if err := copyTree(filepath.Join(from, e.Name()), filepath.Join(to, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
}

// jar packs an installation as the repository does: a tar in an xz in a zip.
func jar(t *testing.T, home string) []byte {
	t.Helper()
	var tarred, zipped bytes.Buffer
	tw := tar.NewWriter(&tarred)
	err := filepath.WalkDir(home, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		link, _ := os.Readlink(path)
		header, err := tar.FileInfoHeader(info, link)
		if err != nil {
			return err
		}
		header.Name, err = filepath.Rel(home, path)
		if err != nil {
			return err
		}
		if err := tw.WriteHeader(header); err != nil || link != "" {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		_, err = tw.Write(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	zw := zip.NewWriter(&zipped)
	w, err := zw.CreateHeader(&zip.FileHeader{Name: "postgres.txz", Method: zip.Store})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(xz(tarred.Bytes())); err != nil {
		t.Fatal(err)
	}
	if err := zw.Close(); err != nil {
		t.Fatal(err)
	}
	return zipped.Bytes()
}

// xz wraps data in the xz format (version 1.1.0 of its specification) without
// compressing it, so that the test needs neither the command nor the time.
func xz(data []byte) []byte {
	le, sum := binary.LittleEndian, crc32.ChecksumIEEE
	pad := func(b []byte) []byte {
		for len(b)%4 != 0 {
			b = append(b, 0)
		}
		return b
	}
	flags := []byte{0, 1} // each block is followed by a CRC32
	out := append([]byte{0xfd, '7', 'z', 'X', 'Z', 0}, flags...)
	out = le.AppendUint32(out, sum(flags))

	// 2: the header has (2+1)*4 bytes; one filter, LZMA2 (0x21), whose one
	// byte of properties gives a dictionary of 1 MiB.
	header := pad([]byte{2, 0, 0x21, 1, 16})
	block := le.AppendUint32(header, sum(header))
	control := byte(1) // an uncompressed chunk that resets the dictionary
	for rest := data; len(rest) > 0; control = 2 {
		n := min(len(rest), 1<<16)
		block = append(block, control, byte((n-1)>>8), byte(n-1))
		block = append(block, rest[:n]...)
		rest = rest[n:]
	}
	block = append(block, 0)
	unpadded := len(block) + 4
	block = le.AppendUint32(pad(block), sum(data))
	out = append(out, block...)

	index := binary.AppendUvarint([]byte{0, 1}, uint64(unpadded))
	index = pad(binary.AppendUvarint(index, uint64(len(data))))
	index = le.AppendUint32(index, sum(index))
	out = append(out, index...)

	footer := append(le.AppendUint32(nil, uint32(len(index)/4-1)), flags...)
	out = le.AppendUint32(out, sum(footer))
	return append(append(out, footer...), 'Y', 'Z')
}

// repository serves content for every path that ends in .jar, with its sum,
// and counts how often.
func repository(t *testing.T, content []byte, sum string) (url string, served *atomic.Int32) {
	t.Helper()
	served = new(atomic.Int32)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, ".sha256") {
			_, _ = w.Write([]byte(sum))
			return
		}
		if !strings.HasSuffix(r.URL.Path, string(downloadVersion)+".jar") {
			http.NotFound(w, r)
			return
		}
		served.Add(1)
		_, _ = w.Write(content)
	}))
	t.Cleanup(server.Close)
	return server.URL, served
}

func TestDownload_StartsWhatItFetched(t *testing.T) {
	content := jar(t, installation(t))
	digest := sha256.Sum256(content)
	url, served := repository(t, content, hex.EncodeToString(digest[:]))

	cfg := newConfig()
	cfg.finder = finder{repository: url, cache: t.TempDir()}
	// As the home directory of root is.
	if err := os.Chmod(cfg.finder.cache, 0o700); err != nil {
		t.Fatal(err)
	}
	s, err := start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, s) })
	conn, err := pgx.Connect(t.Context(), s.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	var share string
	if err := conn.QueryRow(t.Context(), `SELECT setting FROM pg_config WHERE name = 'SHAREDIR'`).Scan(&share); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(share, cfg.finder.cache) && !strings.HasPrefix(share, s.cluster.dir) {
		t.Errorf("Postgres runs from %s, not from what was downloaded", share)
	}

	if _, err := cfg.finder.find(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := served.Load(); n != 1 {
		t.Errorf("downloaded %d times, want once and then from the cache", n)
	}
	entries, err := os.ReadDir(cfg.finder.cache)
	if err != nil || len(entries) != 1 || entries[0].Name() != string(downloadVersion) {
		t.Errorf("the cache holds %v (%v), want the unpacked version alone", entries, err)
	}
}

func TestDownload_BrokenArchive(t *testing.T) {
	var zipped bytes.Buffer
	zw := zip.NewWriter(&zipped)
	w, err := zw.Create("postgres.txz")
	if err != nil {
		t.Fatal(err)
	}
	whole := xz([]byte("this is no tar"))
	if _, err := w.Write(whole[:len(whole)-8]); err != nil {
		t.Fatal(err)
	}
	if err := zw.Close(); err != nil {
		t.Fatal(err)
	}
	digest := sha256.Sum256(zipped.Bytes())
	for name, tc := range map[string]struct{ sum, want string }{
		"of another sum": {strings.Repeat("0", 64), "checksums do not match"},
		"cut off":        {hex.EncodeToString(digest[:]), "extract"},
	} {
		t.Run(name, func(t *testing.T) {
			url, _ := repository(t, zipped.Bytes(), tc.sum)
			cache := t.TempDir()
			_, err := finder{repository: url, cache: cache}.download(t.Context())
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("download() = %v, want an error with %q", err, tc.want)
			}
			if left, err := os.ReadDir(cache); err != nil || len(left) != 0 {
				t.Errorf("the failed download left %v (%v)", left, err)
			}
		})
	}
}
