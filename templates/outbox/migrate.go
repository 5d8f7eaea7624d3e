package outbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Migrate makes the tables, or brings those that it made before up to date, in
// one transaction. It is for programs that use no migration tool: the files
// that were generated for one do the same, and where they have been applied
// Migrate refuses to do it over. Any number of processes may call it at once.
//
// Tables that a newer version of this package has changed are left as they are.
func Migrate(ctx context.Context, db DB) error {
	_, callerTx := db.(pgx.Tx)
	err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if !callerTx {
			// A stricter transaction would not see what the one that it has
			// waited for has done.
			if _, err := tx.Exec(ctx, sqlReadCommitted); err != nil {
				return err
			}
		}
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock(hashtextextended($1::text, 0))", migrationTable); err != nil {
			return err
		}
		var ours, tables bool
		err := tx.QueryRow(ctx, "SELECT to_regclass($1::text) IS NOT NULL, to_regclass($2::text) IS NOT NULL", migrationTable, messageTable).
			Scan(&ours, &tables)
		if err != nil {
			return err
		}
		if tables && !ours {
			return errors.New("the tables were made by another tool: apply the migration files with that, and do not call Migrate")
		}
		if !ours {
			if _, err := tx.Exec(ctx, sqlMigrationTable); err != nil {
				return err
			}
		}
		var done int
		if err := tx.QueryRow(ctx, sqlMigrationsDone).Scan(&done); err != nil {
			return err
		}
		for step := done; step < len(migrationSteps); step++ {
			// A step is several statements, which only the simple protocol takes at once.
			if _, err := tx.Exec(ctx, migrationSteps[step], pgx.QueryExecModeSimpleProtocol); err != nil {
				return fmt.Errorf("step %d: %w", step+1, err)
			}
			if _, err := tx.Exec(ctx, sqlMigrationDone, step+1); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("outbox: Migrate: %w", err)
	}
	return nil
}
