package mysql

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store/internal/sqlstore"
)

// server is what a start has to know of the server and its settings.
type server struct {
	version   string // as it tells it
	mariadb   bool
	major     [3]int
	database  string
	packetMax int // max_allowed_packet, bytes
	binlog    bool
	format    string // binlog_format
	readOnly  bool
	page      int // innodb_page_size
	flush     string
	sync      string // sync_binlog
	innodb    bool
	collated  bool // the collation we need is there
}

// Oldest versions: the collation that does not pad came with MySQL 8.0.17;
// MariaDB before 10.6 is no longer maintained.
var (
	oldestMySQL   = [3]int{8, 0, 17}
	oldestMariaDB = [3]int{10, 6, 0}
)

var versionForm = regexp.MustCompile(`^(?:5\.5\.5-)?(\d+)\.(\d+)\.(\d+)`)

// parseVersion takes what version() says apart.
func parseVersion(version string) (major [3]int, mariadb bool) {
	m := versionForm.FindStringSubmatch(version)
	for i := range major {
		if m != nil {
			major[i], _ = strconv.Atoi(m[i+1])
		}
	}
	return major, strings.Contains(strings.ToLower(version), "mariadb")
}

// kind is the server's name in [sqlstore.Dialect] and readmodel.
func (s *server) kind() string {
	if s.mariadb {
		return "mariadb"
	}
	return "mysql"
}

func (s *server) rows() *readmodel.Dialect {
	if s.mariadb {
		return readmodel.MariaDB
	}
	return readmodel.MySQL
}

func (s *server) collation() string {
	if s.mariadb {
		return "utf8mb4_nopad_bin"
	}
	return "utf8mb4_0900_bin"
}

const inspectSQL = `SELECT version(), coalesce(database(), ''), @@max_allowed_packet, @@log_bin, @@binlog_format,
 @@global.read_only, @@innodb_page_size, @@innodb_flush_log_at_trx_commit, @@sync_binlog,
 (SELECT count(*) FROM information_schema.ENGINES WHERE ENGINE = 'InnoDB' AND SUPPORT IN ('YES', 'DEFAULT')),
 (SELECT count(*) FROM information_schema.COLLATIONS WHERE COLLATION_NAME IN ('utf8mb4_nopad_bin', 'utf8mb4_0900_bin'))`

// inspectServer asks for what [server] holds.
func inspectServer(ctx context.Context, c sqlstore.Conn) (*server, error) {
	r, err := c.Query(ctx, inspectSQL)
	if err != nil {
		return nil, err
	}
	s := new(server)
	var packet, logBin, page, engines, collations int64
	var readOnly string // a number or, on newer MariaDB, a word
	if r.Next() {
		err = r.Scan(&s.version, &s.database, &packet, &logBin, &s.format, &readOnly, &page, &s.flush, &s.sync, &engines, &collations)
	}
	if err := errors.Join(err, r.Close()); err != nil {
		return nil, err
	}
	s.major, s.mariadb = parseVersion(s.version)
	s.packetMax, s.page = int(packet), int(page)
	s.binlog, s.readOnly, s.innodb, s.collated = logBin != 0, readOnly != "0" && readOnly != "OFF", engines > 0, collations > 0
	return s, nil
}

// packetFor is the max_allowed_packet that an event of the largest size needs:
// in the text of a statement a byte may take two.
func packetFor(maxEvent int) int { return 2*maxEvent + packetSpare }

// packetSpare is room in a packet for everything but payloads.
const packetSpare = 64 << 10

// check says what has to change before the database can be used.
func (s *server) check(maxEvent int) error {
	var problems []error
	problem := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	oldest, name := oldestMySQL, "MySQL"
	if s.mariadb {
		oldest, name = oldestMariaDB, "MariaDB"
	}
	if less(s.major, oldest) {
		problem("the server is %s %s: projhost needs MySQL 8.0.17 or MariaDB 10.6, or later", name, s.version)
	}
	if s.database == "" {
		problem("no database is chosen: name one in [store] dsn: user:password@tcp(host:3306)/database")
	}
	if !s.innodb {
		problem("the server has no InnoDB: start it without skip-innodb and disabled_storage_engines")
	}
	if !s.collated && !less(s.major, oldest) {
		problem("the server has no collation %s, by which keys are compared exactly", s.collation())
	}
	if s.binlog && !strings.EqualFold(s.format, "ROW") {
		problem("binlog_format is %s: replicas would not get the same rows; set it to ROW (SET GLOBAL binlog_format = ROW, and in the server's configuration)", s.format)
	}
	if need := packetFor(maxEvent); s.packetMax < need {
		problem("max_allowed_packet is %d bytes: events of [store] max_event = %d need %d; raise it on the server (SET GLOBAL max_allowed_packet, and in its configuration), or lower max_event", s.packetMax, maxEvent, need)
	}
	if s.page < 16<<10 {
		problem("innodb_page_size is %d: indexes on two names of 255 characters need 16384; only a new data directory can change it", s.page)
	}
	if s.readOnly {
		problem("%s", hintReadOnly)
	}
	if len(problems) == 0 {
		return nil
	}
	return fmt.Errorf("mysql: %w", errors.Join(problems...))
}

// warnings are settings that work, but not as well as promised.
func (s *server) warnings() (list []string) {
	if s.flush != "1" {
		list = append(list, "innodb_flush_log_at_trx_commit is "+s.flush+": what was acknowledged can be lost when the server crashes; set it to 1")
	}
	if s.binlog && s.sync != "1" {
		list = append(list, "sync_binlog is "+s.sync+": after a crash replicas may lack what was acknowledged, or the server itself; set it to 1")
	}
	return list
}

func less(a, b [3]int) bool {
	for i := range a {
		if a[i] != b[i] {
			return a[i] < b[i]
		}
	}
	return false
}

// inspect looks at the server that is connected now.
func (s *Store) inspect(ctx context.Context) (srv *server, err error) {
	err = s.engine.Read(ctx, "look at the server", func(c sqlstore.Conn) error {
		srv, err = inspectServer(ctx, c)
		return err
	})
	return srv, err
}

// Warnings names settings of the server that weaken a promise, for doctor.
func (s *Store) Warnings(ctx context.Context) ([]string, error) {
	srv, err := s.inspect(ctx)
	if err != nil {
		return nil, err
	}
	return srv.warnings(), nil
}
